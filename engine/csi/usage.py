"""Reads the usage of published volumes from drivers, on demand only.

A slow driver does not delay callers: they get the last measurement of its volume, or none.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from engine.api.errors import Refused
from engine.csi.driver_calls import VolumeUsage
from engine.csi.drivers import CsiDrivers
from engine.host.tasks import Tasks

PATIENCE_SECONDS: Final = 2.0
ASKED_AT_ONCE: Final = 8
"""Parallel calls to one driver."""

log = logging.getLogger("kubengine.csi")

Key = tuple[str, str]
"""Driver and handle."""


class VolumeMeasurement(msgspec.Struct, frozen=True):
    """Hold a measurement: `time` of the call to the driver in Unix seconds, and `usage`, None if the driver
    reported none.
    """

    time: float
    usage: VolumeUsage | None


class VolumeUsages:
    """Measure volumes, identified by their published path. A measurement is reused for `seconds`."""

    def __init__(self, drivers: CsiDrivers, tasks: Tasks, clock: Callable[[], float], seconds: float) -> None:
        self._drivers = drivers
        self._working = tasks.passing("csi-usage")
        self._clock = clock
        self._seconds = seconds
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(ASKED_AT_ONCE)
        )
        self._measured: dict[Path, VolumeMeasurement] = {}
        self._asking: dict[Path, asyncio.Task[None]] = {}

    async def of(self, published: Mapping[Path, Key]) -> dict[Path, VolumeMeasurement]:
        """Return the measurements that are known within `PATIENCE_SECONDS`."""
        for path, key in published.items():
            if path not in self._asking and not self._is_fresh(path):
                self._asking[path] = self._working.start(self._ask(path, key), key[1])
        asking = [self._asking[path] for path in published if path in self._asking]
        if asking:
            await asyncio.wait(asking, timeout=PATIENCE_SECONDS)
        return {path: self._measured[path] for path in published if path in self._measured}

    def forget(self, uid: str) -> None:
        """Forget the measurements of a pod whose volumes are unpublished."""
        for path in [path for path in self._measured if uid in path.parts]:
            del self._measured[path]
        for path in [path for path in self._asking if uid in path.parts]:
            self._asking.pop(path).cancel()

    async def stop(self) -> None:
        await self._working.stop()

    def _is_fresh(self, path: Path) -> bool:
        known = self._measured.get(path)
        return known is not None and 0 <= self._clock() - known.time < self._seconds

    async def _ask(self, path: Path, key: Key) -> None:
        name, handle = key
        try:
            async with self._slots[name]:
                asked = self._clock()
                self._measured[path] = VolumeMeasurement(asked, await self._measure(name, handle, path))
        finally:
            if self._asking.get(path) is asyncio.current_task():
                del self._asking[path]

    async def _measure(self, name: str, handle: str, path: Path) -> VolumeUsage | None:
        try:
            driver = self._drivers.get(name)
            capabilities = await driver.capabilities()
            return await driver.usage(handle, capabilities, path) if capabilities.reports_usage else None
        except Refused as error:
            log.info("driver %s does not report the usage of volume %s: %s", name, handle, error)
            return None
