"""A volume that a pod has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from engine.node.volumes.claims import BoundVolume

Expand = Callable[[BoundVolume, int], Awaitable[None]]
"""Lets a volume, as it is bound by now, have so many bytes. Raises `NotGrown`, or `Refused` before that."""


@dataclass(frozen=True, slots=True)
class MadeVolume:
    """Where containers find a volume, and what its claim, if it has one, is bound to. `expand` is None where
    nothing is to be done for one that became larger; `grows`: that may be while pods have it."""

    path: Path
    bound: BoundVolume | None = None
    expand: Expand | None = None
    grows: bool = False
