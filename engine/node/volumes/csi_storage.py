"""Connects CSI drivers with the node's pods. The CSI code is imported with the first driver or volume."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.api.pod import Pod, Volume
from engine.csi import paths
from engine.csi.records import DriverRecords
from engine.host.node_context import NodeContext
from engine.node.controlplane.control_plane import ClusterObjects
from engine.node.volumes.attachments import Attachments
from engine.node.volumes.claims import BoundVolume
from engine.node.volumes.mounted_volumes import MountedVolume

if TYPE_CHECKING:
    from engine.csi.drivers import CsiDrivers
    from engine.csi.mounting import Mounting
    from engine.csi.usage import VolumeMeasurement, VolumeUsages
    from engine.node.volumes.csi import CsiVolumes

CSI_PLUGIN: Final = "CSIPlugin"
"""The plugin type of drivers."""
FILES_SECONDS: Final = 10.0
"""The minimum number of seconds between two measurements of a volume."""


class _Parts(NamedTuple):
    drivers: CsiDrivers
    mounting: Mounting
    volumes: CsiVolumes
    usages: VolumeUsages


class CsiStorage:
    """Handle driver registrations for `engine.plugins.watcher.PluginHandler`, with volumes below `root`."""

    def __init__(
        self,
        context: NodeContext,
        objects: ClusterObjects,
        records: DriverRecords,
        attachments: Attachments,
    ) -> None:
        self._clock = context.clock
        self._usage_seconds = max(context.config.volume_stats_agg_period, FILES_SECONDS)
        self._root = context.root
        self._node = context.name
        self._objects = objects
        self._records = records
        self._registry = context.registry
        self._tasks = context.tasks
        self._attachments = attachments

    @cached_property
    def _parts(self) -> _Parts:
        from engine.csi.drivers import CsiDrivers
        from engine.csi.mounting import Mounting
        from engine.csi.usage import VolumeUsages
        from engine.node.volumes.csi import CsiVolumes

        drivers = CsiDrivers(self._records, self._registry)
        mounting = Mounting(self._root, self._node, drivers, self._tasks, self._attachments)
        usages = VolumeUsages(drivers, self._tasks, self._clock, self._usage_seconds)
        volumes = CsiVolumes(self._node, drivers, mounting, self._objects, self._attachments)
        return _Parts(drivers, mounting, volumes, usages)

    @property
    def _loaded(self) -> bool:
        return "_parts" in self.__dict__

    async def start(self) -> None:
        """Report volumes that an earlier agent left staged as in use. Raises `Refused`."""
        if paths.all_staged(self._root).exists():
            await self._parts.mounting.adopt_staged()
        self._attachments.complete()

    def check(self, name: str, socket: Path, versions: Sequence[str]) -> None:
        self._parts.drivers.check(name, socket, versions)

    async def register(self, name: str, socket: Path, versions: Sequence[str]) -> None:
        await self._parts.drivers.register(name, socket, versions)

    async def deregister(self, name: str, socket: Path) -> None:
        await self._parts.drivers.deregister(name, socket)

    async def set_up(
        self, pod: Pod, volume: Volume, bound: BoundVolume | None, removal: asyncio.Event
    ) -> MountedVolume:
        """Set up a volume; stop waiting for its attachment when `removal` is set. Raises `VolumeRefused`."""
        return await self._parts.volumes.set_up(pod, volume, bound, removal)

    def volumes_to_republish(self, uid: str) -> set[str]:
        """Return the names of a pod's volumes whose drivers want periodic NodePublishVolume calls."""
        return self._parts.volumes.volumes_to_republish(uid) if self._loaded else set()

    async def usage(
        self, volumes: Mapping[Path, tuple[Pod, Volume, BoundVolume | None]]
    ) -> dict[Path, VolumeMeasurement]:
        """Return the usage that drivers report, by the path of each volume."""
        keys = {path: self._parts.volumes.key(*volume) for path, volume in volumes.items()}
        return await self._parts.usages.of(keys)

    async def tear_down(self, uid: str) -> None:
        """Remove all CSI volumes of a pod that no longer runs. Raises `Refused`."""
        of_pod = (paths.pods_volumes(self._root, uid), paths.pods_devices(self._root, uid))
        if self._loaded or any(directory.exists() for directory in of_pod):
            await self._parts.volumes.tear_down(uid)
            self._parts.usages.forget(uid)

    async def stop(self) -> None:
        """Stop, and leave drivers and volumes as they are."""
        if self._loaded:
            await self._parts.usages.stop()
            await self._parts.mounting.stop()
            self._parts.drivers.close()
