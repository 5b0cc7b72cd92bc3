"""Updates the volume limits of this node's CSI drivers (MutableCSINodeAllocatableCount).

If a CSIDriver has `nodeAllocatableUpdatePeriodSeconds`, the driver's limit is read with this period. Source:
kubelet v1.36 (`pkg/volume/csi/csi_node_updater.go`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from engine.api.errors import KubengineError
from engine.api.objects.storage import CSIDriver
from engine.cluster.client import ApiClient
from engine.cluster.watching import ResourceWatch, WatchedResource, WatchHandler
from engine.host.tasks import Tasks

CSI_DRIVERS: Final = "/apis/storage.k8s.io/v1/csidrivers"

log = logging.getLogger("kubengine.cluster")

Refresh = Callable[[], Awaitable[None]]
"""Reads a driver's limit and writes it to the CSINode. Raises `KubengineError`."""


class CsiLimits:
    """Refresh the limits of drivers. CSIDrivers are watched once a driver is registered; a driver without a
    period causes no further calls.
    """

    def __init__(self, client: ApiClient, tasks: Tasks) -> None:
        self._watching = tasks.task("csi-drivers")
        self._refreshing = tasks.passing("csi-limits")
        self._watch = ResourceWatch(
            client,
            WatchedResource(CSI_DRIVERS, CSIDriver),
            WatchHandler(self._on_replaced, self._on_changed, self._on_deleted),
        )
        self._begun = False
        self._periods: dict[str, int] = {}
        self._drivers: dict[str, Refresh] = {}
        self._running: dict[str, tuple[int, asyncio.Task[None]]] = {}

    def keep(self, driver: str, refresh: Refresh) -> None:
        """Refresh the limit of a registered driver periodically, until `drop`."""
        self._drivers[driver] = refresh
        if not self._begun:
            self._begun = True
            self._watching.start(self._watch.run)
        self._stop(driver)
        self._reschedule(driver)

    def drop(self, driver: str) -> None:
        """Handle a driver that unregistered."""
        self._drivers.pop(driver, None)
        self._reschedule(driver)

    async def exhausted(self, driver: str) -> bool:
        """Refresh the driver's limit now, because a volume could not be attached for lack of capacity.

        Return whether the driver's limit may change at all.
        """
        refresh = self._drivers.get(driver)
        if refresh is None or not self._periods.get(driver):
            return False
        await self._once(driver, refresh)
        return True

    async def stop(self) -> None:
        await self._watching.stop()
        await self._refreshing.stop()

    def _on_replaced(self, drivers: Sequence[CSIDriver]) -> None:
        self._periods = {each.metadata.name: _period(each) for each in drivers}
        for name in list(self._drivers):
            self._reschedule(name)

    def _on_changed(self, driver: CSIDriver) -> None:
        self._periods[driver.metadata.name] = _period(driver)
        self._reschedule(driver.metadata.name)

    def _on_deleted(self, driver: CSIDriver) -> None:
        self._periods.pop(driver.metadata.name, None)
        self._reschedule(driver.metadata.name)

    def _reschedule(self, driver: str) -> None:
        """Refresh with the driver's current period, or not at all if it has none."""
        period = self._periods.get(driver, 0) if driver in self._drivers else 0
        known = self._running.get(driver)
        if known is not None and known[0] == period:
            return
        self._stop(driver)
        if period:
            task = self._refreshing.start(self._by_period(driver, period), driver)
            self._running[driver] = period, task

    def _stop(self, driver: str) -> None:
        known = self._running.pop(driver, None)
        if known is not None:
            known[1].cancel()

    async def _by_period(self, driver: str, period: int) -> None:
        while True:
            await asyncio.sleep(period)
            await self._once(driver, self._drivers[driver])

    async def _once(self, driver: str, refresh: Refresh) -> None:
        try:
            await refresh()
        except KubengineError as error:
            log.warning("the volume limit of driver %s could not be updated: %s", driver, error)


def _period(driver: CSIDriver) -> int:
    return driver.spec.node_allocatable_update_period_seconds or 0
