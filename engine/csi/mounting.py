"""Volumes of drivers on this node: staged once for all pods, published for each, and taken away again.

Whose a mount is stands beside it before the driver is asked (`volume_data`), so that an agent that comes
after a death finds what there is to take away. What a driver has put into a directory is looked at beneath it
and through no link.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakValueDictionary

from engine.api.duration import doubled
from engine.api.errors import Refused
from engine.csi import places, volume_data
from engine.csi.driver_calls import Capabilities, Driver, DriverFailed
from engine.csi.drivers import Drivers
from engine.csi.volume import CsiVolume
from engine.csi.volume_data import VolumeData
from engine.host.beneath import HANDLE, make_directories, mount_id, open_beneath, opened, opened_parent
from engine.host.mounts import unmount
from engine.host.shared_trees import share_tree
from engine.host.tasks import Tasks

FIRST_RETRY_SECONDS: Final = 0.5
LAST_RETRY_SECONDS: Final = 122.0
_DIRECTORY_MODE: Final = 0o750
_READABLE: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK

log = logging.getLogger("kubengine.csi")

Key = tuple[str, str]
"""Driver and handle."""
STAGED: Final = "staged"


class Attachments(Protocol):
    """Which attached volumes nobody may detach, by their names in a node's status."""

    def use(self, volume: str, user: str) -> None: ...

    def release(self, volume: str, user: str) -> None: ...


class Mounting:
    """Under the node's directory `root`. Users of `attachments` are pods by their uids, and `STAGED`."""

    def __init__(
        self, root: Path, node: str, drivers: Drivers, tasks: Tasks, attachments: Attachments
    ) -> None:
        self._root = root
        self._node = node
        self._drivers = drivers
        self._attachments = attachments
        self._working = tasks.passing("csi-unstage")
        self._turns: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._ready: set[Key] = set()
        self._published: set[Path] = set()
        self._leaving: set[Key] = set()
        self._unstaging: dict[Key, asyncio.Task[None]] = {}
        drivers.on_arrival(self._came)

    async def look_around(self) -> None:
        """What an earlier agent left staged is in use. Raises `Refused`."""
        for data in await asyncio.to_thread(self._all_staged):
            self._attachments.use(places.unique_name(data.driver, data.handle), STAGED)

    async def stop(self) -> None:
        """Leaves volumes as they are."""
        await self._working.stop()

    # Made

    async def stage(
        self, uid: str, volume: CsiVolume, driver: Driver, able: Capabilities, *, attached: bool
    ) -> None:
        """Makes a persistent volume ready for pods of this node, of which `uid` is one from now on.
        `attached`: somebody attaches it to the node.

        Raises `Refused` or `OSError`.
        """
        key = volume.driver, volume.handle
        name = places.unique_name(*key)
        async with self._turn(key):
            await asyncio.to_thread(self._mark, uid, volume)
            if key in self._ready:
                return
            directory = places.staged(self._root, *key)
            await asyncio.to_thread(self._prepare, directory, VolumeData(*key))
            if attached:
                self._attachments.use(name, STAGED)
            else:
                self._attachments.release(name, STAGED)
            if able.stages:
                try:
                    await driver.stage(volume, able, directory / places.GLOBAL_MOUNT)
                except DriverFailed as error:
                    if error.settled:
                        await asyncio.to_thread(self._clear, directory, places.GLOBAL_MOUNT)
                        self._attachments.release(name, STAGED)
                    raise
            self._ready.add(key)

    async def publish(
        self, uid: str, volume: CsiVolume, driver: Driver, able: Capabilities, *, again: bool
    ) -> Path:
        """Where a pod's containers find the volume; with `again` the driver is asked though it is there.

        Raises `Refused` or `OSError`.
        """
        directory = places.published(self._root, uid, volume.name)
        target = directory / places.MOUNT
        before = target in self._published
        if before and not again:
            return target
        staging = None
        if volume.persistent and able.stages:
            staging = self.staging(volume)
        await asyncio.to_thread(self._mark, uid, volume)
        try:
            await driver.publish(volume, able, target, staging)
        except DriverFailed as error:
            if error.settled and not before and not volume.persistent:
                await asyncio.to_thread(self._clear, directory, places.MOUNT)
            raise
        await asyncio.to_thread(self._look_through, target, None if able.gives_to_group else volume)
        self._published.add(target)
        return target

    def staging(self, volume: CsiVolume) -> Path:
        """Where a persistent volume is staged."""
        return places.staged(self._root, volume.driver, volume.handle) / places.GLOBAL_MOUNT

    def _mark(self, uid: str, volume: CsiVolume) -> None:
        directory = places.published(self._root, uid, volume.name)
        self._make(directory)
        data = VolumeData(volume.driver, volume.handle, not volume.persistent)
        if volume_data.read(directory) != data:
            volume_data.keep_published(directory, volume.name, data, volume.mode, self._node)

    def _prepare(self, directory: Path, data: VolumeData) -> None:
        self._make(directory / places.GLOBAL_MOUNT)
        volume_data.keep_staged(directory, data)

    def _make(self, directory: Path) -> None:
        with opened(self._root) as top:
            below = str(directory.relative_to(self._root))
            os.close(make_directories(top, below, _DIRECTORY_MODE))

    def _look_through(self, target: Path, volume: CsiVolume | None) -> None:
        """That the driver has made a directory, which is the pod's group's where that is the node's work."""
        with opened_parent(target, self._root) as (parent, name):
            try:
                top = open_beneath(parent, name, _READABLE)
            except OSError as error:
                text = f"the driver has made no directory there: {error.strerror}"
                raise Refused(text, subject=str(target), errno=error.errno) from error
            try:
                if volume is not None and volume.belongs_to_group and volume.group is not None:
                    share_tree(top, volume.group, volume.group_change_policy)
            except OSError as error:
                text = f"applyFSGroup failed for vol {volume.handle if volume else ''}: {error.strerror}"
                raise Refused(text, errno=error.errno) from error
            finally:
                os.close(top)

    # Taken away

    async def withdraw(self, uid: str) -> None:
        """Takes all volumes from a pod of which nothing runs; what nobody has any more is unstaged beside it.

        Raises the first `Refused`, having tried all.
        """
        failure: Refused | None = None
        for directory in await asyncio.to_thread(self._volumes_of, uid):
            try:
                await self._unpublish(directory)
            except Refused as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _unpublish(self, directory: Path) -> None:
        data = await asyncio.to_thread(volume_data.read, directory)
        target = directory / places.MOUNT
        if data is not None:
            driver = await self._drivers.wait_for(data.driver)
            try:
                await driver.unpublish(data.handle, target)
            except DriverFailed as error:
                text = f'UnmountVolume.TearDown failed for volume "{directory.name}" : {error}'
                raise Refused(text) from error
        await asyncio.to_thread(self._clear, directory, places.MOUNT)
        self._published.discard(target)
        if data is not None and not data.ephemeral:
            self._unstage_soon((data.driver, data.handle))

    def _unstage_soon(self, key: Key) -> None:
        self._leaving.add(key)
        if key not in self._unstaging:
            task = self._unstaging[key] = self._working.start(self._unstage_until_done(key), key[1])
            task.add_done_callback(lambda _: self._unstaging.pop(key, None))

    async def _unstage_until_done(self, key: Key) -> None:
        failures, said = 0, ""
        while key in self._leaving:
            self._leaving.discard(key)
            try:
                async with self._turn(key):
                    await self._unstage(key)
            except (Refused, OSError) as error:
                failures += 1
                if str(error) != said:
                    said = str(error)
                    log.warning("volume %s of driver %s is not unstaged: %s", key[1], key[0], error)
                self._leaving.add(key)
                await asyncio.sleep(doubled(FIRST_RETRY_SECONDS, failures, LAST_RETRY_SECONDS))

    async def _unstage(self, key: Key) -> None:
        """Unless a pod has the volume, or nobody can be asked now: `_sweep` comes when the driver does."""
        name, handle = key
        directory = places.staged(self._root, name, handle)
        if await asyncio.to_thread(self._has_users, key) or name not in self._drivers.names():
            return
        self._ready.discard(key)
        if await asyncio.to_thread(volume_data.read, directory) is not None:
            driver = self._drivers.get(name)
            if (await driver.capabilities()).stages:
                await driver.unstage(handle, directory / places.GLOBAL_MOUNT)
        await asyncio.to_thread(self._clear, directory, places.GLOBAL_MOUNT)
        self._attachments.release(places.unique_name(*key), STAGED)

    def _came(self, driver: str) -> None:
        self._working.keep(lambda: self._sweep(driver), driver)

    async def _sweep(self, driver: str) -> None:
        """A driver has come: what of its volumes was left staged for nobody goes."""
        for data in await asyncio.to_thread(self._all_staged, driver):
            self._unstage_soon((data.driver, data.handle))

    def _clear(self, directory: Path, mount: str) -> None:
        """Takes away a directory with what was mounted in it; nothing is removed that a driver left there.

        Raises `Refused`.
        """
        try:
            with suppress(FileNotFoundError), opened_parent(directory / mount, self._root) as (parent, name):
                _clear_mount(parent, name)
                with suppress(FileNotFoundError):
                    os.unlink(places.DATA, dir_fd=parent)
                directory.rmdir()
        except OSError as error:
            text = f"cannot be taken away: {error.strerror}"
            raise Refused(text, subject=str(directory / mount), errno=error.errno) from error

    # What is on disk

    def _volumes_of(self, uid: str) -> list[Path]:
        return _listed(places.pods_volumes(self._root, uid))

    def _has_users(self, key: Key) -> bool:
        return any(
            (data.driver, data.handle) == key
            for pod in _listed(self._root / "pods")
            for directory in self._volumes_of(pod.name)
            if (data := volume_data.read(directory)) is not None
        )

    def _all_staged(self, driver: str | None = None) -> list[VolumeData]:
        top = places.all_staged(self._root)
        drivers = _listed(top) if driver is None else [top / driver]
        found = (volume_data.read(volume) for of_driver in drivers for volume in _listed(of_driver))
        return [data for data in found if data is not None]

    def _turn(self, key: Key) -> asyncio.Lock:
        return self._turns.setdefault(key, asyncio.Lock())


def _listed(directory: Path) -> list[Path]:
    """Nothing where there is no directory, by now."""
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _clear_mount(parent: int, name: str) -> None:
    """A driver that leaves its mount has had its say. Raises `OSError`: ENOTEMPTY where it left files."""
    while True:
        try:
            handle = open_beneath(parent, name, HANDLE)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            os.unlink(name, dir_fd=parent)
            return
        try:
            if mount_id(handle) == mount_id(parent):
                break
            unmount(handle)
        finally:
            os.close(handle)
    try:
        os.rmdir(name, dir_fd=parent)
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent)
