"""Determines how images, writable layers and the rest share file systems, and what follows from it.

`shared`: one file system for all. `imagefs`: images and writable layers on their own. `split`: images on
their own, writable layers with the node's. Source: kubelet v1.32, KEP-4191.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from msgspec.structs import replace

from engine.eviction import signals
from engine.eviction.thresholds import Threshold

Layout = Literal["shared", "imagefs", "split"]
Part = Literal["root", "logs", "volumes", "images"]
Reclaim = Literal["containers", "images"]

NODEFS: Final = "nodefs"
IMAGEFS: Final = "imagefs"
CONTAINERFS: Final = "containerfs"

EVERYTHING: Final[tuple[Reclaim, ...]] = ("containers", "images")

_MEASURED: Final[dict[tuple[Layout, str], tuple[Part, ...]]] = {
    ("shared", NODEFS): ("images", "root", "logs", "volumes"),
    ("shared", IMAGEFS): ("images", "root", "logs", "volumes"),
    ("shared", CONTAINERFS): ("images", "root", "logs", "volumes"),
    ("imagefs", NODEFS): ("logs", "volumes"),
    ("imagefs", IMAGEFS): ("images", "root"),
    ("imagefs", CONTAINERFS): ("images", "root"),
    ("split", NODEFS): ("root", "logs", "volumes"),
    ("split", IMAGEFS): ("images",),
    ("split", CONTAINERFS): ("root", "logs", "volumes"),
}
_RECLAIMS: Final[dict[tuple[Layout, str], tuple[Reclaim, ...]]] = {
    ("shared", NODEFS): ("containers", "images"),
    ("shared", IMAGEFS): ("containers", "images"),
    ("shared", CONTAINERFS): ("containers", "images"),
    ("imagefs", NODEFS): (),
    ("imagefs", IMAGEFS): ("containers", "images"),
    ("imagefs", CONTAINERFS): ("containers", "images"),
    ("split", NODEFS): ("containers",),
    ("split", IMAGEFS): ("images",),
    ("split", CONTAINERFS): ("containers",),
}


def measured_parts(layout: Layout, signal: str) -> tuple[Part, ...]:
    """Return which parts of a pod's disk usage count when `signal` (a disk signal) is starved."""
    return _MEASURED[layout, signal.partition(".")[0]]


def reclaims(layout: Layout, signal: str, *, everywhere: bool = False) -> tuple[Reclaim, ...]:
    """Return what can be reclaimed for `signal` before a pod is evicted, in order; nothing for memory and
    pids.

    With `everywhere`, everything on any file system: separate file systems may share their blocks (btrfs,
    ZFS, thin volumes), and dead containers leave logs on the node's (kubernetes/kubernetes#129616).
    """
    if everywhere and is_disk(signal):
        return EVERYTHING
    return _RECLAIMS.get((layout, signal.partition(".")[0]), ())


def with_container_filesystem(thresholds: Sequence[Threshold], layout: Layout) -> list[Threshold]:
    """Add thresholds for the file system of writable layers: those of nodefs, or of a dedicated imagefs.

    Configured ones are replaced, as by the kubelet.
    """
    twin = IMAGEFS if layout == "imagefs" else NODEFS
    own = [t for t in thresholds if not t.signal.startswith(CONTAINERFS)]
    copies = [
        replace(t, signal=t.signal.replace(twin, CONTAINERFS, 1))
        for t in own
        if t.signal.startswith(twin + ".")
    ]
    return own + copies


def is_disk(signal: str) -> bool:
    return signals.CONDITION_OF[signal] == signals.DISK_PRESSURE
