"""Describes a volume that is set up for a pod."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from engine.node.volumes.claims import BoundVolume

Expand = Callable[[BoundVolume, int], Awaitable[None]]
"""Expands the volume to a number of bytes. Raises `ExpansionFailed`, or `Refused` before that."""


class MountedVolume(msgspec.Struct, frozen=True):
    """Hold the host path of a volume, and the persistent volume that its claim is bound to.

    With `relabel`, the runtime labels the files with the SELinux label of the containers that use them.
    `expand` is None if the node has nothing to do after the volume grew. `online_expansion` allows expansion
    while pods use the volume.
    """

    path: Path
    bound: BoundVolume | None = None
    relabel: bool = False
    expand: Expand | None = None
    online_expansion: bool = False
