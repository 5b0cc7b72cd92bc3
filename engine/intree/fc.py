"""Attaches and detaches Fibre Channel disks.

A disk is found through its links in /dev, if necessary after a scan of all SCSI hosts, and is deleted from
the kernel when no pod uses it.

Source: kubelet v1.36 (`pkg/volume/fc`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from engine.api.errors import KubengineError, Refused
from engine.host.tasks import Tasks
from engine.host.trees import remove_tree
from engine.intree.commands import run, unmount, words
from engine.intree.disk_volumes import Access, DiskVolumes, listed
from engine.intree.fc_disk import FcDisk, named
from engine.intree.iscsiadm import SECONDS, flush_multipath
from engine.intree.paths import DEVICES, FC, fc_devices, fc_mounts
from engine.intree.scsi import ScsiDisks

log = logging.getLogger("kubengine.volumes")


class FcVolumes(DiskVolumes[FcDisk]):
    """Mount the Fibre Channel disks of a node, below its directory `root`."""

    def __init__(self, root: Path, tasks: Tasks, scsi: ScsiDisks | None = None) -> None:
        super().__init__(root, FC, tasks)
        self._scsi = scsi or ScsiDisks()

    async def attach(self, disk: FcDisk, access: Access) -> Path:
        """Return the multipath device of a disk that a pod has reserved, or the last path found without one.

        Raises `Refused` or `OSError`.
        """
        directory = disk.directory(self._root, block=access.block)
        async with self._lock(disk.name):
            device = await asyncio.to_thread(self._search, disk)
            users = set(self._reserved[directory]) if access.block else set()
            await asyncio.to_thread(_record, directory, users, device)
        return device

    def _search(self, disk: FcDisk) -> Path:
        devices = self._devices(disk)
        mapped = self._scsi.multipath(devices)
        if mapped is None:
            # A scan may find further paths, from which multipathd builds the multipath device.
            self._scsi.rescan()
            devices = self._devices(disk)
            mapped = self._scsi.multipath(devices)
        if mapped is None and not devices:
            raise Refused("no fc disk found")
        return mapped or devices[-1]

    def _devices(self, disk: FcDisk) -> list[Path]:
        by_target = [each for wwn in disk.wwns for each in self._scsi.fibre_channel(wwn, disk.lun)]
        return by_target + [each for wwid in disk.wwids for each in self._scsi.identified(wwid)]

    def _directories(self) -> list[Path]:
        mounts = [each for each in listed(fc_mounts(self._root)) if each.name != DEVICES]
        return mounts + listed(fc_devices(self._root))

    def _is_block(self, directory: Path) -> bool:
        return directory.parent.name == DEVICES

    def _block_users(self, directory: Path) -> set[str]:
        """Return the pods with an entry in the directory that still have a link to a device."""
        entries = (each.name for each in listed(directory))
        return {uid for uid in entries if listed(self._root / "pods" / uid / DEVICES / FC)}

    async def _detach(self, directory: Path) -> None:
        async with self._lock(directory.name):
            if await self._in_use(directory):
                return
            await unmount(directory)
            if not await self._has_another_volume(directory):
                await self._delete(named(directory))
            await asyncio.to_thread(remove_tree, directory)

    async def _has_another_volume(self, directory: Path) -> bool:
        """Tell whether the disk also has a directory in the other volume mode; detaching that deletes it."""
        directories = await asyncio.to_thread(self._directories)
        return any(each.name == directory.name and each != directory for each in directories)

    async def _delete(self, disk: FcDisk) -> None:
        devices = await asyncio.to_thread(self._devices, disk)
        mapped = await asyncio.to_thread(self._scsi.multipath, devices)
        if mapped is not None:
            devices = await asyncio.to_thread(self._scsi.members, mapped)
            await flush_multipath(str(mapped))
            if await asyncio.to_thread(self._scsi.is_known, mapped):
                raise Refused("the multipath device is still in use", subject=str(mapped))
        await _flush(devices)
        for each in devices:
            await asyncio.to_thread(self._scsi.delete, each)


def _record(directory: Path, users: Iterable[str], device: Path) -> None:
    """Create the disk's directory, with a link for each pod that uses it as a device."""
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    for uid in users:
        entry = directory / uid
        # An existing entry that is not a link is a kubelet's mount for this pod; it stays until the pod is
        # removed.
        if entry.is_symlink() or not entry.exists():
            entry.unlink(missing_ok=True)
            entry.symlink_to(device)


async def _flush(devices: Iterable[Path]) -> None:
    """Flush the buffers of disks. Failures are only logged, since the disks may be gone."""
    for device in devices:
        try:
            done = await run(["blockdev", "--flushbufs", str(device)], SECONDS)
        except KubengineError as error:
            log.warning("%s is not flushed: %s", device, error)
            continue
        if done.code:
            log.warning("%s is not flushed: %s", device, words(done))
