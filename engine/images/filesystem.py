"""Finds the file systems of images and containers, and measures them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from engine.api.errors import Unavailable
from engine.cri.client import RuntimeClient
from engine.images.collection import FilesystemReading

STATVFS_TIMEOUT = 10.0


class RuntimeFilesystems(msgspec.Struct, frozen=True):
    """Hold the directories of the runtime's images and writable layers, and the usage that it reports, in
    bytes.
    """

    images: Path
    containers: Path | None
    image_bytes: int


async def runtime_filesystems(runtime: RuntimeClient) -> RuntimeFilesystems:
    """Ask the runtime. Raises `Refused` or `Unavailable`, also if it names no image file system."""
    info = await runtime.image_fs_info()
    if not info.image_filesystems or not info.image_filesystems[0].fs_id.mountpoint:
        raise Unavailable("the runtime reports no image file system", subject=runtime.endpoint)
    first = info.image_filesystems[0]
    containers = [Path(f.fs_id.mountpoint) for f in info.container_filesystems if f.fs_id.mountpoint]
    return RuntimeFilesystems(
        Path(first.fs_id.mountpoint), containers[0] if containers else None, first.used_bytes.value
    )


def read_filesystem(path: Path) -> FilesystemReading:
    """Return bytes and inodes of the file system that holds `path`. Raises `OSError`."""
    stats = os.statvfs(path)
    unit = stats.f_frsize or stats.f_bsize
    return FilesystemReading(
        stats.f_blocks * unit, stats.f_bavail * unit, stats.f_files or None, stats.f_favail or None
    )


async def read_filesystem_in_time(path: Path) -> FilesystemReading:
    """Do the same in a thread, because a dead network mount never answers. Raises `Unavailable`,
    `OSError`.
    """
    try:
        async with asyncio.timeout(STATVFS_TIMEOUT):
            return await asyncio.to_thread(read_filesystem, path)
    except TimeoutError:
        raise Unavailable(f"no answer within {STATVFS_TIMEOUT:.0f} s", subject=f"statvfs {path}") from None


def same_device(one: Path, other: Path) -> bool:
    """Tell whether two paths are on one file system. Raises `OSError`."""
    return one.stat().st_dev == other.stat().st_dev
