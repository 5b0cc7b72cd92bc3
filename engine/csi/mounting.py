"""Stages volumes once per node, publishes them for each pod, and reverses both.

The owner of a volume is recorded on disk before the driver is called (`on_disk`), so that an agent can clean
up after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from engine.api.errors import Refused
from engine.csi import paths, volume_data
from engine.csi.devices import Devices
from engine.csi.driver_calls import CsiDriver, CsiDriverFailed, DriverCapabilities
from engine.csi.drivers import CsiDrivers
from engine.csi.file_systems import FileSystems
from engine.csi.on_disk import OnDisk, Published, Staged
from engine.csi.volume import CsiVolume
from engine.csi.volume_data import VolumeData
from engine.host.tasks import Tasks
from engine.host.threads import to_own_thread
from engine.plugins.retries import RETRIES

log = logging.getLogger("kubengine.csi")


class AttachedVolumes(Protocol):
    """Report which attached volumes must not be detached, by their names in a node's status."""

    def use(self, volume: str, user: str) -> None: ...

    def release(self, volume: str, user: str) -> None: ...


class Mounting:
    """Mount volumes below the node's directory `root`. The users in `attachments` are uids of pods and paths
    of staged volumes.
    """

    def __init__(
        self, root: Path, node: str, drivers: CsiDrivers, tasks: Tasks, attachments: AttachedVolumes
    ) -> None:
        self._kinds: dict[bool, OnDisk] = {False: FileSystems(root, node), True: Devices(root, node)}
        self._drivers = drivers
        self._attachments = attachments
        self._working = tasks.passing("csi-unstage")
        self._locks: WeakValueDictionary[Staged, asyncio.Lock] = WeakValueDictionary()
        self._ready: set[Staged] = set()
        self._published: set[Path] = set()
        self._to_unstage: set[Staged] = set()
        self._unstaging: set[Staged] = set()
        drivers.on_registration(self._driver_registered)

    async def adopt_staged(self) -> None:
        """Report volumes that an earlier agent left staged as in use. Raises `Refused`."""
        for staged in await asyncio.to_thread(self._all_staged):
            self._use(staged)

    async def stop(self) -> None:
        """Stop, and leave volumes as they are."""
        await self._working.stop()

    def staging(self, volume: CsiVolume) -> Path:
        """Return the staging path of a persistent volume."""
        return self._staged(volume).path

    # Mounting

    async def reserve(self, uid: str, volume: CsiVolume, *, exclusive: bool) -> bool:
        """Reserve a persistent volume for a pod; with `exclusive`, return False if another pod has it.

        Raises `Refused` or `OSError`.
        """
        staged, on_disk = self._staged(volume), self._kinds[volume.block]
        async with self._lock(staged):
            # ReadWriteOncePod: read from disk, since a pod that an earlier agent started may still have the
            # volume.
            if exclusive and await asyncio.to_thread(on_disk.users, staged) - {uid}:
                return False
            await asyncio.to_thread(on_disk.mark, uid, volume, _data(volume))
        return True

    async def stage(
        self,
        uid: str,
        volume: CsiVolume,
        driver: CsiDriver,
        capabilities: DriverCapabilities,
        *,
        attached: bool,
    ) -> None:
        """Stage a persistent volume that the pod `uid` has reserved.

        `attached` means that the attach-detach controller attaches it to the node. Raises `Refused` or
        `OSError`.
        """
        staged, on_disk = self._staged(volume), self._kinds[volume.block]
        async with self._lock(staged):
            if await asyncio.to_thread(on_disk.label, staged) != volume.label:
                # The kernel labels a file system when it is mounted, so another label needs another mount.
                # While a pod of the old label uses the volume, that is refused.
                await self._unstage_for(uid, staged, driver, capabilities)
            if staged in self._ready:
                return
            # Recorded before the driver is called: after a crash in between, the next agent must know what to
            # unstage.
            await asyncio.to_thread(on_disk.prepare, staged, volume.label)
            if attached:
                self._use(staged)
            else:
                self._release(staged)
            if capabilities.stages:
                try:
                    await driver.stage(volume, capabilities, staged.path)
                except CsiDriverFailed as error:
                    # After any other error the driver may still be staging, so the directory stays until an
                    # unstage call (CSI: the state of the volume is unknown).
                    if error.final and await asyncio.to_thread(on_disk.users, staged) <= {uid}:
                        await asyncio.to_thread(on_disk.clear_staged, staged)
                        self._release(staged)
                    raise
            self._ready.add(staged)

    async def _unstage_for(
        self, uid: str, staged: Staged, driver: CsiDriver, capabilities: DriverCapabilities
    ) -> None:
        """Unstage a volume that only the pod `uid` has reserved, so that it can be staged differently."""
        on_disk = self._kinds[staged.block]
        if await asyncio.to_thread(volume_data.read, staged.data) is None:
            return
        if await asyncio.to_thread(on_disk.users, staged) - {uid}:
            raise Refused("it is mounted with another SELinux label for another pod")
        # Discarded before the call: even if unstaging fails, the volume must be staged again before use.
        self._ready.discard(staged)
        if capabilities.stages:
            await driver.unstage(staged.handle, staged.path)
        await asyncio.to_thread(on_disk.clear_staged, staged)

    async def publish(
        self, uid: str, volume: CsiVolume, driver: CsiDriver, capabilities: DriverCapabilities, *, again: bool
    ) -> Path:
        """Publish the volume and return its path; with `again` the driver is called even if it is published.

        Raises `Refused` or `OSError`.
        """
        on_disk = self._kinds[volume.block]
        published = on_disk.of_pod(uid, volume.name)
        target = published.target
        before = target in self._published
        # `requiresRepublish` drivers are called again, to renew tokens.
        if before and not again:
            return target
        staging = None
        if volume.persistent and (capabilities.stages or volume.block):
            staging = self.staging(volume)
        await asyncio.to_thread(on_disk.mark, uid, volume, _data(volume))
        try:
            await driver.publish(volume, capabilities, target, staging)
        except CsiDriverFailed as error:
            # A persistent volume keeps its directory and its record: the pod's removal unpublishes it.
            if error.final and not before and not volume.persistent:
                await asyncio.to_thread(on_disk.clear_published, published)
            raise
        await to_own_thread(on_disk.check, target, volume, capabilities)
        self._published.add(target)
        return target

    # Unmounting

    async def tear_down(self, uid: str) -> None:
        """Unpublish all volumes of a pod that no longer runs. Volumes that no pod uses are unstaged in the
        background.

        Tries all volumes, then raises the first `Refused`.
        """
        failure: Refused | None = None
        for on_disk in self._kinds.values():
            for published in await asyncio.to_thread(on_disk.published, uid):
                try:
                    await self._unpublish(published)
                except Refused as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    async def _unpublish(self, published: Published) -> None:
        on_disk = self._kinds[published.block]
        data = await asyncio.to_thread(volume_data.read, published.data)
        if data is not None:
            driver = await self._drivers.wait_for(data.driver)
            try:
                await driver.unpublish(data.handle, published.target)
            except CsiDriverFailed as error:
                doing = "UnmapVolume.UnmapPodDevice" if published.block else "UnmountVolume.TearDown"
                text = f'{doing} failed for volume "{published.name}" : {error}'
                raise Refused(text) from error
        self._published.discard(published.target)
        try:
            await to_own_thread(on_disk.clear_published, published)
        finally:
            # An ephemeral volume is never staged: it belongs to one pod.
            if data is not None and not data.ephemeral:
                self._unstage_soon(on_disk.staged(published.name, data))

    def _unstage_soon(self, staged: Staged) -> None:
        # One task per volume: calls to a driver for the same volume must not overlap (CSI, "Concurrency").
        self._to_unstage.add(staged)
        if staged not in self._unstaging:
            self._unstaging.add(staged)
            self._working.start(self._unstage_while_requested(staged), staged.handle)

    async def _unstage_while_requested(self, staged: Staged) -> None:
        """Unstage until no request is pending. There must be no await between the last check and the removal
        from `_unstaging`, or a request would be lost.
        """
        try:
            await self._unstage_until_done(staged)
        finally:
            self._unstaging.discard(staged)

    async def _unstage_until_done(self, staged: Staged) -> None:
        failures, reported = 0, ""
        while staged in self._to_unstage:
            # Discarded before the work, so that a request that arrives meanwhile leads to another round.
            self._to_unstage.discard(staged)
            try:
                async with self._lock(staged):
                    await self._unstage(staged)
            except (Refused, OSError) as error:
                failures += 1
                if str(error) != reported:
                    reported = str(error)
                    text = "volume %s of driver %s could not be unstaged: %s"
                    log.warning(text, staged.handle, staged.driver, error)
                self._to_unstage.add(staged)
                await asyncio.sleep(RETRIES.after(failures))

    async def _unstage(self, staged: Staged) -> None:
        """Unstage, unless a pod has the volume or the driver is not registered: `_sweep` runs when it
        registers.
        """
        on_disk = self._kinds[staged.block]
        # `reserve` holds the same lock, so no pod can reserve the volume after this check.
        if await asyncio.to_thread(on_disk.users, staged) or staged.driver not in self._drivers.names():
            return
        self._ready.discard(staged)
        if await asyncio.to_thread(volume_data.read, staged.data) is not None:
            driver = self._drivers.get(staged.driver)
            if (await driver.capabilities()).stages:
                await driver.unstage(staged.handle, staged.path)
        await asyncio.to_thread(on_disk.clear_staged, staged)
        self._release(staged)

    def _driver_registered(self, driver: str) -> None:
        self._working.start_retrying(lambda: self._sweep(driver), driver)

    async def _sweep(self, driver: str) -> None:
        """Unstage the unused volumes of a driver that has registered."""
        for staged in await asyncio.to_thread(self._all_staged, driver):
            self._unstage_soon(staged)

    def _all_staged(self, driver: str | None = None) -> list[Staged]:
        return [staged for on_disk in self._kinds.values() for staged in on_disk.all_staged(driver)]

    def _staged(self, volume: CsiVolume) -> Staged:
        return self._kinds[volume.block].staged(volume.name, _data(volume))

    def _lock(self, staged: Staged) -> asyncio.Lock:
        return self._locks.setdefault(staged, asyncio.Lock())

    def _use(self, staged: Staged) -> None:
        self._attachments.use(paths.unique_name(staged.driver, staged.handle), str(staged.path))

    def _release(self, staged: Staged) -> None:
        name = paths.unique_name(staged.driver, staged.handle)
        self._attachments.release(name, str(staged.path))


def _data(volume: CsiVolume) -> VolumeData:
    return VolumeData(volume.driver, volume.handle, not volume.persistent, volume.label)
