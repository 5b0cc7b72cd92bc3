"""Attaches and detaches iSCSI disks: logs in to targets, finds their disks, and uses multipath devices.

Source: kubelet v1.36 (`pkg/volume/iscsi`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput, KubengineError, Refused
from engine.host.files import replace_file
from engine.host.mountinfo import is_mount_point
from engine.host.tasks import Tasks
from engine.host.trees import remove_tree
from engine.intree import iscsiadm
from engine.intree.commands import unmount
from engine.intree.disk_volumes import Access, DiskVolumes, listed
from engine.intree.iscsi_disk import RECORD, IscsiDisk, device_links, named, record, recorded
from engine.intree.paths import DEVICES, INTERFACE, ISCSI, iscsi_devices, iscsi_mounts
from engine.intree.scsi import ScsiDisks

ROUNDS: Final = 5
"""The number of attempts to find a disk at each portal, until two portals have one."""
ROUNDS_WITH_TWO: Final = 2
ENOUGH_PATHS: Final = 2
DEVICE_SECONDS: Final = 30
MULTIPATH_SECONDS: Final = 10
_MOST_RECORD: Final = 1 << 16

log = logging.getLogger("kubengine.volumes")


class IscsiVolumes(DiskVolumes[IscsiDisk]):
    """Mount the iSCSI disks of a node, below its directory `root`.

    `pause` is the number of seconds between two searches for a device that has not appeared yet.
    """

    def __init__(
        self, root: Path, tasks: Tasks, scsi: ScsiDisks | None = None, *, pause: float = 1.0
    ) -> None:
        super().__init__(root, ISCSI, tasks)
        self._scsi = scsi or ScsiDisks()
        self._pause = pause

    async def attach(self, disk: IscsiDisk, access: Access) -> Path:
        """Return the device of a disk that a pod has reserved; log in to its target where necessary.

        Raises `InvalidInput`, `Refused` or `OSError`.
        """
        directory = disk.directory(self._root, block=access.block)
        async with self._lock(directory):
            transport = await iscsiadm.transport(disk)
            # All disks of a target share its session: one must not log out while another logs in.
            async with self._lock(disk.iqn):
                devices = await self._paths(disk, access, transport)
                device = await self._one_device(disk, devices)
                await asyncio.to_thread(self._record, directory, disk, access.block)
        return device

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
        # Scan only this LUN: a scan of the whole host would attach disks that belong to other machines.
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
        """Write the disk's record, which detaching needs, before the mount hides the directory's content."""
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        if block or not is_mount_point(directory):
            replace_file(directory / RECORD, record(disk))

    # Detaching

    def _directories(self) -> list[Path]:
        return [
            directory
            for top in (iscsi_mounts(self._root), iscsi_devices(self._root))
            for interface in listed(top)
            if interface.name.startswith(INTERFACE)
            for directory in listed(interface)
        ]

    async def _detach(self, directory: Path) -> None:
        if await self._in_use(directory):
            return
        await unmount(directory)
        try:
            disk = await asyncio.to_thread(_recorded, directory)
        except InvalidInput as error:
            log.error("%s: its disk stays attached: %s", directory, error)
            return
        disks = await asyncio.to_thread(self._scsi.disks, disk.iqn, disk.lun)
        mapped = await asyncio.to_thread(self._scsi.multipath, disks)
        if mapped is not None:
            await iscsiadm.flush_multipath(str(mapped))
        # Deleted before the logout, since the kernel would report errors of disks that vanish.
        for each in disks:
            await asyncio.to_thread(self._scsi.delete, each)
        async with self._lock(disk.iqn):
            others = [d for d in await asyncio.to_thread(self._directories) if d != directory]
            # Log out only after the last disk of the target on this node.
            if not any(other.name.startswith(f"{disk.target}-lun-") for other in others):
                await iscsiadm.log_out(disk)
            await asyncio.to_thread(_remove, directory)

    def _is_block(self, directory: Path) -> bool:
        return directory.parent.parent.name == DEVICES

    def _block_users(self, directory: Path) -> set[str]:
        try:
            name = _recorded(directory).name
        except InvalidInput:
            return set()
        links = (self._root / "pods").glob(f"*/{DEVICES}/{ISCSI}/{name}") if name else ()
        return {link.parents[2].name for link in links}


def _recorded(directory: Path) -> IscsiDisk:
    """Return the disk of a directory, from its record or, without a valid one, from its path."""
    try:
        with (directory / RECORD).open("rb") as file:
            return recorded(file.read(_MOST_RECORD))
    except FileNotFoundError:
        return named(directory)
    except InvalidInput as error:
        log.warning(
            "%s is ignored, and the directory's name says which disk it is: %s", directory / RECORD, error
        )
        return named(directory)


def _remove(directory: Path) -> None:
    """Remove a disk's directory, and its interface's if that is empty. Raises `OSError`."""
    remove_tree(directory)
    with suppress(OSError):
        directory.parent.rmdir()
