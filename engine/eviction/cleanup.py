"""Reclaims disk space on the node before a pod is evicted, and detects when the space has become free.

Blocks may become free long after a removal returns (a runtime that collects layers later, a file system that
frees in the background): kubernetes/kubernetes#130663.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from engine.containers.manager import ContainerGC
from engine.eviction.layout import reclaims
from engine.eviction.pressure import PressureTracker
from engine.eviction.readings import SignalReader
from engine.host.node_context import NodeContext
from engine.images.manager import ImageManager

TIMEOUT: Final = 300.0
SETTLE_POLL: Final = 1.0
"""Seconds between two readings of what removals give back."""
ENOUGH, SHORT = "enough", "short"

log = logging.getLogger("kubengine.eviction")
QUIET_READINGS: Final = 3


class GarbageCollectors(msgspec.Struct, frozen=True):
    """Hold the collectors that eviction calls before it ends a pod; None for those that a node does
    not have.
    """

    images: ImageManager | None = None
    containers: ContainerGC | None = None


NO_COLLECTORS: Final = GarbageCollectors()


class Cleanup:
    """Remove dead containers and unused images, and tell whether that was enough."""

    def __init__(
        self,
        context: NodeContext,
        reader: SignalReader,
        tracker: PressureTracker,
        *,
        collectors: GarbageCollectors,
        monotonic: Callable[[], float],
    ) -> None:
        self.section = context.kubengine_config.eviction
        self._reader, self._tracker = reader, tracker
        self._images, self._containers = collectors.images, collectors.containers
        self._decisions, self._monotonic = context.decisions, monotonic
        self._results = context.registry.counter(
            "kubengine_eviction_reclaims_total",
            "Clean-ups before an eviction, by whether they freed enough.",
            ["eviction_signal", "result"],
        )

    async def relieves(self, signal: str) -> bool:
        """Reclaim what `signal` needs; return whether no threshold is met any longer."""
        steps = self._steps(signal)
        if not steps:
            return False
        began = self._monotonic()
        removed = {name: await self._take(signal, step) for name, step in steps.items()}
        # None (unknown, after a time-out) counts: the removal may go on in the runtime.
        may_grow = any(count != 0 for count in removed.values())
        relieved = self._is_relieved() or (may_grow and await self._becomes_enough(signal))
        self._results.inc(signal, ENOUGH if relieved else SHORT)
        if relieved:
            inputs = {"signal": signal, "removed": removed, "seconds": self._monotonic() - began}
            text = "the clean-up freed enough: no pod is evicted"
            self._decisions.record("eviction", "spared", text, inputs)
        return relieved

    def _steps(self, signal: str) -> dict[str, Callable[[], Awaitable[Any]]]:
        steps: dict[str, Callable[[], Awaitable[Any]]] = {}
        for name in reclaims(self._reader.layout, signal, everywhere=self.section.reclaim_everywhere):
            if name == "containers" and self._containers is not None:
                steps[name] = self._containers.delete_all_unused
            if name == "images" and self._images is not None:
                steps[name] = self._images.delete_unused
        return steps

    async def _take(self, signal: str, step: Callable[[], Awaitable[Any]]) -> int | None:
        """Return how many were removed, or None if unknown."""
        try:
            async with asyncio.timeout(TIMEOUT):
                report = await step()
        except TimeoutError:
            log.warning("reclaiming for %s took more than %.0f s", signal, TIMEOUT)
            return None
        if report.error:
            log.warning("reclaiming for %s: %s", signal, report.error)
        return len(report.removed)

    async def _becomes_enough(self, signal: str) -> bool:
        """Watch the available amount while it grows after a removal; return whether it becomes enough."""
        deadline = self._monotonic() + float(self.section.reclaim_settle)
        settling = Settling()
        while self._monotonic() < deadline:
            await asyncio.sleep(SETTLE_POLL)
            observations = self._reader.read(self._monotonic())
            if self._tracker.is_relieved(observations):
                return True
            if signal not in observations or settling.update(observations[signal].available):
                return False
        return False

    def _is_relieved(self) -> bool:
        return self._tracker.is_relieved(self._reader.read(self._monotonic()))


class Settling(msgspec.Struct):
    """Watch an available amount in any unit; it has settled after `QUIET_READINGS` readings in a row without
    a new maximum.
    """

    most: int = -1
    quiet: int = 0

    def update(self, available: int) -> bool:
        """Take a reading; return whether it has settled."""
        self.quiet = 0 if available > self.most else self.quiet + 1
        self.most = max(self.most, available)
        return self.quiet >= QUIET_READINGS
