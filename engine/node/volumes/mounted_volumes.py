"""Describes a volume that a pod has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from engine.node.volumes.claims import BoundVolume

Expand = Callable[[BoundVolume, int], Awaitable[None]]
"""Expands the volume to a number of bytes. Raises `ExpansionFailed`, or `Refused` before that."""


class MadeVolume(msgspec.Struct, frozen=True):
    """Describe a volume that is set up: its path on the host, and what its claim is bound to.

    `relabel` lets the runtime give the files the SELinux label of the containers that use them. `expand` is
    None if the volume needs no action after it became larger; `grows` allows expansion while pods use it.
    """

    path: Path
    bound: BoundVolume | None = None
    relabel: bool = False
    expand: Expand | None = None
    grows: bool = False
