"""Attaches iSCSI disks, mounts them once for all pods and again for each pod, and detaches unused ones.

Which pods use a disk is read from the mounts and links of the pods, so an agent that is restarted, or that
takes a kubelet's place, detaches nothing that is in use. Source: kubelet v1.36 (`pkg/volume/iscsi`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from engine.api.duration import RetryDelays
from engine.api.errors import InvalidInput, KubengineError, Refused
from engine.host.files import replace_file
from engine.host.formatting import DEFAULT_KIND, format_and_mount
from engine.host.loop_devices import detach_loop_devices
from engine.host.mountinfo import device_at, is_mount_point, mounted
from engine.host.mounts import bind, clear_mount, restrict
from engine.host.safe_open import opened_parent
from engine.host.selinux import mount_option
from engine.host.shared_trees import share_tree
from engine.host.tasks import Tasks
from engine.host.trees import remove_tree
from engine.intree import iscsiadm
from engine.intree.commands import unmount
from engine.intree.iscsi_disk import RECORD, IscsiDisk, device_links, named, record, recorded
from engine.intree.places import (
    DEVICES,
    INTERFACE,
    ISCSI,
    iscsi_devices,
    iscsi_mounts,
    plugin_directory,
    pod_devices,
    pod_volume,
)
from engine.intree.scsi import ScsiDisks

ROUNDS: Final = 5
"""How often portals without a disk are tried, until two of them have one."""
ROUNDS_WITH_TWO: Final = 2
ENOUGH_PATHS: Final = 2
DEVICE_SECONDS: Final = 30
MULTIPATH_SECONDS: Final = 10
DETACH_RETRIES: Final = RetryDelays(1.0, 122.0)
_MOST_RECORD: Final = 1 << 16

log = logging.getLogger("kubengine.volumes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a pod uses a disk. `label` is the SELinux label to mount it with, '' for none; the secret is
    part of no text.
    """

    block: bool = False
    fs_type: str = ""
    read_only: bool = False
    options: Sequence[str] = ()
    label: str = ""
    group: int | None = None
    group_policy: str | None = None
    secret: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    discovery_chap: bool = False
    session_chap: bool = False


class IscsiVolumes:
    """The iSCSI disks of a node, below its directory `root`; `pause` is how long to wait for a device before
    the next look, in seconds.
    """

    def __init__(
        self, root: Path, tasks: Tasks, scsi: ScsiDisks | None = None, *, pause: float = 1.0
    ) -> None:
        self._root = root
        self._scsi = scsi or ScsiDisks()
        self._pause = pause
        self._working = tasks.passing("iscsi-detach")
        self._reserved: defaultdict[Path, set[str]] = defaultdict(set)
        self._turns: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        self._detaching: set[Path] = set()

    async def start(self) -> None:
        """Detach what an earlier agent left and no pod uses."""
        await self._sweep()

    async def stop(self) -> None:
        """Stop, and leave disks as they are."""
        await self._working.stop()

    def users(self, disk: IscsiDisk, *, block: bool) -> set[str]:
        """Return the uids of the pods that have reserved the disk or have it on disk. Blocking."""
        directory = disk.directory(self._root, block=block)
        return self._reserved.get(directory, set()) | self._shown_users(directory)

    def reserve(self, uid: str, disk: IscsiDisk, *, block: bool) -> None:
        """Keep the disk attached, once it is, until the pod leaves."""
        self._reserved[disk.directory(self._root, block=block)].add(uid)

    async def attach(self, disk: IscsiDisk, access: Access) -> Path:
        """Return the device of a disk that a pod has reserved; log in to its target where necessary.

        Raises `InvalidInput`, `Refused` or `OSError`.
        """
        directory = disk.directory(self._root, block=access.block)
        async with self._turn(directory):
            transport = await iscsiadm.transport(disk)
            async with self._turn(disk.iqn):
                devices = await self._paths(disk, access, transport)
                device = await self._one_device(disk, devices)
                await asyncio.to_thread(self._record, directory, disk, access.block)
        return device

    async def mount_for_all(self, disk: IscsiDisk, device: Path, access: Access) -> Path:
        """Mount the device, which gets a file system if it is empty, and return where. Raises as `attach`."""
        directory = disk.directory(self._root, block=False)
        async with self._turn(directory):
            if not await asyncio.to_thread(is_mount_point, directory):
                read_only = ["ro"] if access.read_only else []
                options = [*access.options, *read_only, *mount_option(access.label)]
                kind = access.fs_type or DEFAULT_KIND
                await format_and_mount(device, directory, kind, sorted(set(options)))
        return directory

    async def mount_for_pod(self, uid: str, name: str, directory: Path, access: Access) -> Path:
        """Mount the disk's directory for a pod, and give it to the pod's group. Raises `OSError`."""
        target = pod_volume(self._root, uid, ISCSI, name)
        await asyncio.to_thread(_bind, directory, target, access)
        return target

    async def link_for_pod(self, uid: str, name: str, device: Path) -> Path:
        """Link the device in the directory of a pod that uses it as a device, and return it. Raises `Refused`
        or `OSError`.
        """
        return await asyncio.to_thread(_link, pod_devices(self._root, uid, ISCSI) / name, device)

    async def leave(self, uid: str) -> None:
        """Take all disks from a pod, and detach unused ones in the background. Raises the first failure."""
        failure: Exception | None = None
        for point in await asyncio.to_thread(_listed, plugin_directory(self._root, uid, ISCSI)):
            try:
                await unmount(point)
                await asyncio.to_thread(point.rmdir)
            except (KubengineError, OSError) as error:
                failure = failure or error
        for link in await asyncio.to_thread(_listed, pod_devices(self._root, uid, ISCSI)):
            await asyncio.to_thread(self._forget_device, uid, link)
        if failure is not None:
            raise failure
        for directory, users in list(self._reserved.items()):
            users.discard(uid)
            if not users:
                del self._reserved[directory]
        await self._sweep()

    # Attaching

    async def _paths(self, disk: IscsiDisk, access: Access, transport: str) -> list[Path]:
        """Return the device of each portal that has one. Raises the last failure if none has."""
        found: dict[str, Path] = {}
        failure: Exception = Refused(f"no portal of {disk.target} answers")
        for each_round in range(1, ROUNDS + 1):
            for portal in disk.portals:
                if portal not in found:
                    try:
                        found[portal] = await self._path(disk, portal, access, transport)
                    except (KubengineError, OSError) as error:
                        failure = error
            if not found:
                await iscsiadm.delete_interface(disk)
                text = f"failed to get any path for iscsi disk, last err seen: {failure}"
                raise Refused(text) from failure
            enough = len(found) >= ENOUGH_PATHS and each_round >= ROUNDS_WITH_TWO
            if len(found) == len(disk.portals) or enough:
                break
        return list(found.values())

    async def _path(self, disk: IscsiDisk, portal: str, access: Access, transport: str) -> Path:
        host = (await asyncio.to_thread(self._scsi.hosts, disk.iqn)).get(portal)
        if host is None:
            await iscsiadm.log_in(
                disk,
                portal,
                access.secret,
                discovery_chap=access.discovery_chap,
                session_chap=access.session_chap,
            )
            host = (await asyncio.to_thread(self._scsi.hosts, disk.iqn)).get(portal)
            if host is None:
                raise Refused(f"could not get SCSI host number for portal {portal} after logging in")
        await asyncio.to_thread(self._scsi.scan, host, disk.lun)
        link = device_links(disk, portal, transport)
        for _ in range(DEVICE_SECONDS):
            device = await asyncio.to_thread(self._scsi.find, link)
            if device is not None:
                return device
            await asyncio.sleep(self._pause)
        raise Refused(f"timed out waiting for device at path /dev/disk/by-path/{link}")

    async def _one_device(self, disk: IscsiDisk, devices: Sequence[Path]) -> Path:
        """Return the multipath device of the paths, or the first path if there is none in time."""
        looks = MULTIPATH_SECONDS if len(disk.portals) > 1 else 1
        for look in range(looks):
            if look:
                await asyncio.sleep(self._pause)
            mapped = await asyncio.to_thread(self._scsi.multipath, devices)
            if mapped is not None:
                return mapped
        return devices[0]

    def _record(self, directory: Path, disk: IscsiDisk, block: bool) -> None:
        """Write how to detach the disk before it is mounted over the record."""
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        if block or not is_mount_point(directory):
            replace_file(directory / RECORD, record(disk))

    # Detaching

    async def _sweep(self) -> None:
        for directory in await asyncio.to_thread(self._directories):
            if directory not in self._detaching and not self._reserved.get(directory):
                self._detaching.add(directory)
                self._working.start(self._detach_until_done(directory), directory.name)

    def _directories(self) -> list[Path]:
        return [
            directory
            for top in (iscsi_mounts(self._root), iscsi_devices(self._root))
            for interface in _listed(top)
            if interface.name.startswith(INTERFACE)
            for directory in _listed(interface)
        ]

    async def _detach_until_done(self, directory: Path) -> None:
        """Detach a disk that no pod uses; failures are tried again."""
        pauses, said = iter(DETACH_RETRIES), ""
        try:
            while True:
                try:
                    async with self._turn(directory):
                        await self._detach(directory)
                    return
                except (KubengineError, OSError) as error:
                    if str(error) != said:
                        said = str(error)
                        log.warning("iSCSI disk %s is not detached: %s", directory, error)
                await asyncio.sleep(next(pauses))
        finally:
            self._detaching.discard(directory)

    async def _detach(self, directory: Path) -> None:
        if self._reserved.get(directory) or await asyncio.to_thread(self._shown_users, directory):
            return
        await unmount(directory)
        try:
            disk = await asyncio.to_thread(_recorded, directory)
        except InvalidInput as error:
            log.error("%s: %s; it stays as it is", directory, error)
            return
        disks = await asyncio.to_thread(self._scsi.disks, disk.iqn, disk.lun)
        mapped = await asyncio.to_thread(self._scsi.multipath, disks)
        if mapped is not None:
            await iscsiadm.flush_multipath(str(mapped))
        for each in disks:
            await asyncio.to_thread(self._scsi.delete, each)
        async with self._turn(disk.iqn):
            others = [d for d in await asyncio.to_thread(self._directories) if d != directory]
            if not any(other.name.startswith(f"{disk.target}-lun-") for other in others):
                await iscsiadm.log_out(disk)
            await asyncio.to_thread(_remove, directory)

    def _shown_users(self, directory: Path) -> set[str]:
        """Return the uids of the pods with a mount of the disk, or a link to it."""
        pods = self._root / "pods"
        if directory.parent.parent.name == DEVICES:
            try:
                name = _recorded(directory).name
            except InvalidInput:
                return set()
            return (
                {link.parents[2].name for link in pods.glob(f"*/{DEVICES}/{ISCSI}/{name}")} if name else set()
            )
        device = device_at(directory)
        if device is None:
            return set()
        top = f"{pods.resolve()}/"
        points = (Path(m.point) for m in mounted() if m.device == device and m.point.startswith(top))
        return {point.parents[2].name for point in points if point.parent.name == ISCSI}

    def _forget_device(self, uid: str, link: Path) -> None:
        """Remove a pod's link, and the mount and loop device that a kubelet added. Raises `OSError`."""
        for directory in self._directories():
            kubelets = directory / uid
            if directory.parent.parent.name == DEVICES and os.path.lexists(kubelets):
                detach_loop_devices(kubelets)
                with opened_parent(kubelets, self._root) as (parent, entry):
                    clear_mount(parent, entry)
        link.unlink(missing_ok=True)

    def _turn(self, key: Hashable) -> asyncio.Lock:
        return self._turns.setdefault(key, asyncio.Lock())


def _bind(directory: Path, target: Path, access: Access) -> None:
    """Mount a directory at `target`, unless it is there, with the pod's group and options."""
    if not is_mount_point(target):
        source = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if access.group is not None and not access.read_only:
                share_tree(source, access.group, access.group_policy)
            target.mkdir(mode=0o750, parents=True, exist_ok=True)
            bind(source, target)
        finally:
            os.close(source)
    restrict(target, [*access.options, *(["ro"] if access.read_only else ())])


def _link(link: Path, device: Path) -> Path:
    found = device.resolve(strict=True)
    if not stat.S_ISBLK(found.stat().st_mode):
        raise Refused("not a block device", subject=str(device))
    link.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(device)
    return found


def _recorded(directory: Path) -> IscsiDisk:
    """Return the disk of a directory, from its record or, without one, from its path."""
    try:
        with (directory / RECORD).open("rb") as file:
            return recorded(file.read(_MOST_RECORD))
    except FileNotFoundError:
        return named(directory)
    except InvalidInput as error:
        log.warning("%s: %s", directory / RECORD, error)
        return named(directory)


def _remove(directory: Path) -> None:
    """Remove a disk's directory, and its interface's if that is empty. Raises `OSError`."""
    remove_tree(directory)
    with suppress(OSError):
        directory.parent.rmdir()


def _listed(directory: Path) -> list[Path]:
    """Return the entries of a directory; none if it does not exist."""
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
