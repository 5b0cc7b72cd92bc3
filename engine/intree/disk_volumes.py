"""Mounts disks once for all pods, bind-mounts them for each pod, and detaches unused ones.

The users of a disk are read from the mounts and links of the pods. An agent that is restarted, or that
replaces a kubelet, therefore detaches no disk in use. Subclasses attach and detach the disks of one plugin.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from engine.api.duration import RetryDelays
from engine.api.errors import KubengineError, Refused
from engine.api.struct import PartlyShown
from engine.host.disks.formatting import DEFAULT_KIND, format_and_mount
from engine.host.disks.loop_devices import detach_loop_devices
from engine.host.mountinfo import device_at, is_mount_point, mounted
from engine.host.mounts import bind, clear_mount, restrict
from engine.host.safe_open import opened_parent
from engine.host.selinux import has_mount_label, mount_option
from engine.host.shared_trees import share_tree
from engine.host.tasks import Tasks
from engine.host.threads import to_own_thread
from engine.intree.commands import unmount
from engine.intree.paths import plugin_directory, pod_devices, pod_volume

DETACH_RETRIES: Final = RetryDelays(1.0, 122.0)

log = logging.getLogger("kubengine.volumes")


class Access(PartlyShown, frozen=True, kw_only=True):
    """Describe how a pod uses a disk. `label` is the SELinux label to mount it with, '' for none. The `repr`
    does not show the secret.
    """

    HIDDEN = frozenset(("secret",))
    block: bool = False
    fs_type: str = ""
    read_only: bool = False
    options: Sequence[str] = ()
    label: str = ""
    group: int | None = None
    group_policy: str | None = None
    secret: Mapping[str, bytes] = msgspec.field(default_factory=dict)
    discovery_chap: bool = False
    session_chap: bool = False


class AttachedDisk(Protocol):
    """Describe a disk with its directory."""

    def directory(self, root: Path, *, block: bool) -> Path:
        """Return the mount point for all pods, or the directory of a block volume."""


Disk = TypeVar("Disk", bound=AttachedDisk)


class DiskVolumes(ABC, Generic[Disk]):
    """Mount the disks of one plugin, below the node's directory `root`. `plugin` names the pods'
    directories.
    """

    def __init__(self, root: Path, plugin: str, tasks: Tasks) -> None:
        self._root = root
        self._plugin = plugin
        self._working = tasks.passing(f"{plugin.partition('~')[2]}-detach")
        self._reserved: defaultdict[Path, set[str]] = defaultdict(set)
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        self._detaching: set[Path] = set()

    @abstractmethod
    async def attach(self, disk: Disk, access: Access) -> Path:
        """Return the device of a disk that a pod has reserved.

        Raises `InvalidInput`, `Refused` or `OSError`.
        """

    @abstractmethod
    def _directories(self) -> list[Path]:
        """Return the directories of all disks. Blocking."""

    @abstractmethod
    def _is_block(self, directory: Path) -> bool:
        """Tell whether a disk's directory is that of a block volume."""

    @abstractmethod
    def _block_users(self, directory: Path) -> set[str]:
        """Return the uids of the pods that use a block volume. Blocking."""

    @abstractmethod
    async def _detach(self, directory: Path) -> None:
        """Detach a disk unless a pod uses it, and remove its directory. Raises a `KubengineError` or
        `OSError`, after which the call is retried.
        """

    async def start(self) -> None:
        """Detach disks that an earlier agent attached and no pod uses."""
        await self._sweep()

    async def stop(self) -> None:
        """Stop, and leave disks as they are."""
        await self._working.stop()

    def users(self, disk: Disk, *, block: bool) -> set[str]:
        """Return the uids of the pods that have reserved the disk or have it on disk. Blocking."""
        directory = disk.directory(self._root, block=block)
        return self._reserved.get(directory, set()) | self._shown_users(directory)

    def reserve(self, uid: str, disk: Disk, *, block: bool) -> None:
        """Prevent the disk from being detached until the pod is released."""
        self._reserved[disk.directory(self._root, block=block)].add(uid)

    async def mount_for_all(self, disk: Disk, device: Path, access: Access) -> Path:
        """Mount the device, and format it if it is empty; return the mount point. Raises as `attach`."""
        directory = disk.directory(self._root, block=False)
        async with self._lock(directory):
            if not await asyncio.to_thread(is_mount_point, directory):
                read_only = ["ro"] if access.read_only else []
                options = [*access.options, *read_only, *mount_option(access.label)]
                kind = access.fs_type or DEFAULT_KIND
                await format_and_mount(device, directory, kind, sorted(set(options)))
            elif access.label and not await asyncio.to_thread(has_mount_label, directory, access.label):
                raise Refused("it is mounted with another SELinux label for another pod")
        return directory

    async def mount_for_pod(self, uid: str, name: str, directory: Path, access: Access) -> Path:
        """Bind-mount the disk's directory for a pod, and set the fsGroup's ownership. Raises `OSError`."""
        target = pod_volume(self._root, uid, self._plugin, name)
        await to_own_thread(_bind, directory, target, access)
        return target

    async def link_for_pod(self, uid: str, name: str, device: Path) -> Path:
        """Link the device in the directory of a pod that uses it as a device, and return it. Raises `Refused`
        or `OSError`.
        """
        return await asyncio.to_thread(_link, pod_devices(self._root, uid, self._plugin) / name, device)

    async def release(self, uid: str) -> None:
        """Unmount all disks of a pod, and detach unused ones in the background. Raises the first failure."""
        failure: Exception | None = None
        for point in await asyncio.to_thread(listed, plugin_directory(self._root, uid, self._plugin)):
            try:
                await unmount(point)
                await asyncio.to_thread(point.rmdir)
            except (KubengineError, OSError) as error:
                failure = failure or error
        for link in await asyncio.to_thread(listed, pod_devices(self._root, uid, self._plugin)):
            await asyncio.to_thread(self._forget_device, uid, link)
        if failure is not None:
            raise failure
        for directory, users in list(self._reserved.items()):
            users.discard(uid)
            if not users:
                del self._reserved[directory]
        await self._sweep()

    async def _sweep(self) -> None:
        for directory in await asyncio.to_thread(self._directories):
            if directory not in self._detaching and not self._reserved.get(directory):
                self._detaching.add(directory)
                self._working.start(self._detach_until_done(directory), directory.name)

    async def _detach_until_done(self, directory: Path) -> None:
        """Detach a disk that no pod uses; failures are retried."""
        pauses, reported = iter(DETACH_RETRIES), ""
        try:
            while True:
                try:
                    async with self._lock(directory):
                        await self._detach(directory)
                    return
                except (KubengineError, OSError) as error:
                    if str(error) != reported:
                        reported = str(error)
                        log.warning("disk %s is not detached: %s", directory, error)
                await asyncio.sleep(next(pauses))
        finally:
            self._detaching.discard(directory)

    async def _in_use(self, directory: Path) -> bool:
        return bool(self._reserved.get(directory)) or bool(
            await asyncio.to_thread(self._shown_users, directory)
        )

    def _shown_users(self, directory: Path) -> set[str]:
        """Return the uids of the pods with a mount of the disk or a link to it. Blocking."""
        if self._is_block(directory):
            return self._block_users(directory)
        device = device_at(directory)
        if device is None:
            return set()
        top = f"{(self._root / 'pods').resolve()}/"
        points = (Path(m.point) for m in mounted() if m.device == device and m.point.startswith(top))
        return {point.parents[2].name for point in points if point.parent.name == self._plugin}

    def _forget_device(self, uid: str, link: Path) -> None:
        """Remove a pod's link, and its entry in the disk's directory: a link, or a kubelet's mount and loop
        device. Raises `OSError`.
        """
        for directory in self._directories():
            entry = directory / uid
            if self._is_block(directory) and os.path.lexists(entry):
                detach_loop_devices(entry)
                with opened_parent(entry, self._root) as (parent, name):
                    clear_mount(parent, name)
        link.unlink(missing_ok=True)

    def _lock(self, key: Hashable) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())


def _bind(directory: Path, target: Path, access: Access) -> None:
    """Mount a directory at `target`, unless it is mounted already, with the pod's group and options."""
    if not is_mount_point(target):
        # Mounted by descriptor, so that the directory cannot be replaced in between.
        source = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if access.group is not None and not access.read_only:
                share_tree(source, access.group, access.group_policy)
            target.mkdir(mode=0o750, parents=True, exist_ok=True)
            bind(source, target)
        finally:
            os.close(source)
    # A bind mount ignores options when it is created; they take effect only in a remount (mount(8)).
    restrict(target, [*access.options, *(["ro"] if access.read_only else ())])


def _link(link: Path, device: Path) -> Path:
    # The link points to the name in /dev/disk, which survives a restart; the device's own name may change.
    found = device.resolve(strict=True)
    if not stat.S_ISBLK(found.stat().st_mode):
        raise Refused("not a block device", subject=str(device))
    link.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(device)
    return found


def listed(directory: Path) -> list[Path]:
    """Return the entries of a directory; none if it does not exist."""
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
