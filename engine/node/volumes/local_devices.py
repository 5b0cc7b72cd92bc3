"""Manages local persistent volumes: which pods use them, and the mounts of those on block devices.

As in a kubelet, a device is mounted once, at `<root>/plugins/kubernetes.io/local-volume/mounts/<volume>`, and
pods get bind mounts of it. It stays mounted while a bind mount exists.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from engine.api.errors import KubengineError, Refused
from engine.api.events import WARNING, EventRecorder
from engine.api.objects.storage import LocalVolume
from engine.cri.paths import pods_directory
from engine.host.mounts import clear_mount, is_mount
from engine.host.safe_open import opened_parent
from engine.node.volumes import block_device, local
from engine.node.volumes.claims import BoundVolume
from engine.node.volumes.local import check_path
from engine.node.volumes.refusals import SET_UP, SET_UP_DEVICE, TAKEN, ExpansionFailed, refusing

INITIALIZING: Final = "MountVolume.NewMounter initialization failed"
MOUNT_DEVICE: Final = "MountVolume.MountDevice failed"
MISMATCH: Final = "FailedMountOnFilesystemMismatch"
_MOUNTS: Final = "plugins/kubernetes.io/local-volume/mounts"

log = logging.getLogger("kubengine.volumes")


class LocalDevices:
    """Mount local volumes below the node's directory `root`."""

    def __init__(self, root: Path, recorder: EventRecorder) -> None:
        self._root = root
        self._recorder = recorder
        self._mounts = root / _MOUNTS
        self._pods = pods_directory(root)
        self._users: defaultdict[str, set[str]] = defaultdict(set)
        self._mismatches: dict[str, str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def reserve(self, uid: str, bound: BoundVolume) -> None:
        """Reserve a volume for a pod. Raises `VolumeRefused` if only one pod may use it and another does."""
        name = bound.name
        if bound.for_one_pod:
            kind = block_device if bound.block else local
            mounted = await asyncio.to_thread(kind.users, self._pods, name)
            with refusing(name, SET_UP_DEVICE if bound.block else SET_UP):
                if (mounted | self._users[name]) - {uid}:
                    raise Refused(TAKEN)
        self._users[name].add(uid)

    async def set_up(self, uid: str, bound: BoundVolume, volume: LocalVolume, options: Sequence[str]) -> Path:
        """Return the directory to mount for a pod that reserved the volume: the volume's path, or for a block
        device the mount point of its file system.

        Raises `VolumeRefused`.
        """
        name = bound.name
        with refusing(name):
            check_path(volume)
        with refusing(name, INITIALIZING):
            if not await asyncio.to_thread(_is_device, volume):
                return Path(volume.path)
        from engine.host.disks.formatting import DEFAULT_KIND, FilesystemMismatch, format_and_mount

        target, kind = self._mounts / name, volume.fs_type or DEFAULT_KIND
        async with self._lock(name):
            with refusing(name, MOUNT_DEVICE):
                if await asyncio.to_thread(is_mount, target):
                    return target
                await asyncio.to_thread(target.mkdir, 0o750, parents=True, exist_ok=True)
                try:
                    await format_and_mount(Path(volume.path), target, kind, options)
                except BaseException as error:
                    self._users[name].discard(uid)
                    await self._try_unmount(name)
                    if not isinstance(error, Refused):
                        raise
                    about = f"local: failed to mount device {volume.path} at {target} (fstype: {kind}), error"
                    failed = type(error)(f"{about} {error}", errno=error.errno)
                    if isinstance(error, FilesystemMismatch):
                        self._report_mismatch(bound, failed)
                    raise failed from error
                self._mismatches.pop(name, None)
        return target

    async def expand(self, bound: BoundVolume, _: int) -> None:
        """Grow the file system to the size of its device. Raises `ExpansionFailed`."""
        assert isinstance(bound.source, LocalVolume)
        try:
            if bound.block or not await asyncio.to_thread(_is_device, bound.source):
                return
            from engine.host.disks.formatting import grow_file_system

            async with self._lock(bound.name):
                await grow_file_system(Path(bound.source.path), self._mounts / bound.name)
        except (KubengineError, OSError) as error:
            raise ExpansionFailed(str(error)) from error

    async def release(self, uid: str) -> None:
        """Release volumes of a pod, and unmount those that no pod uses."""
        for name, users in list(self._users.items()):
            users.discard(uid)
            if not users:
                del self._users[name]
        await self.sweep()

    async def sweep(self) -> None:
        """Unmount the volumes that no pod uses. Failures are logged; the next call tries again."""
        if not self._mounts.exists():
            return
        for name in await asyncio.to_thread(os.listdir, self._mounts):
            async with self._lock(name):
                if not self._users.get(name):
                    await self._try_unmount(name)

    def _report_mismatch(self, bound: BoundVolume, error: Exception) -> None:
        """Emit the event about a wrong file system, once while it stays the same."""
        text = f'MountVolume failed for volume "{bound.name}" {error}'
        if self._mismatches.get(bound.name) != text:
            self._mismatches[bound.name] = text
            self._recorder.volume(bound.metadata, WARNING, MISMATCH, text)

    async def _try_unmount(self, name: str) -> None:
        try:
            await asyncio.to_thread(self._unmount, name)
        except OSError as error:
            log.warning("%s cannot be removed: %s", self._mounts / name, error.strerror)

    def _unmount(self, name: str) -> None:
        """Unmount, unless a pod still uses the volume since an earlier agent. Raises `OSError`."""
        # Read from the mounts, since `_users` lacks the pods of an earlier agent.
        if local.users(self._pods, name):
            return
        with opened_parent(self._mounts / name, self._root) as (parent, entry):
            clear_mount(parent, entry)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())


def _is_device(volume: LocalVolume) -> bool:
    """Return true for a block device and false for a directory. Raises `Refused` or `OSError` for anything
    else.
    """
    mode = Path(volume.path).stat().st_mode
    if not stat.S_ISBLK(mode) and not stat.S_ISDIR(mode):
        raise Refused("only directory and block device are supported")
    return stat.S_ISBLK(mode)
