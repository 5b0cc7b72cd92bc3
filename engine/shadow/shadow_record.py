"""Write the record of a shadow: its observations, and the events of the kubelet and the runtime between them.

The API server cannot select Events by node. It sends those of all kubelets, and the record stores those of
its node. Without the permission to list Events, the record has none, and the shadow reports this once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from engine.api.kubengine_config import RecordSection
from engine.cluster.client import ApiClient
from engine.cluster.watching import ResourceWatch, WatchedResource, WatchHandler
from engine.host.tasks import Tasks
from engine.record.blocks import RecordRow
from engine.record.writer import FLUSH_SECONDS, record_writer
from engine.shadow.events import ClusterEvent, cluster_row, runtime_row
from engine.shadow.kinds.comparison import Finding
from engine.shadow.observation_rows import RecordedObservation, skipped_row
from engine.shadow.recording import ObservationRecorder
from engine.wire import cri_v1_pb2 as cri

EVENTS: Final[WatchedResource[ClusterEvent]] = WatchedResource(
    "/api/v1/events", ClusterEvent, "reportingComponent=kubelet"
)


class ShadowRecord:
    """Write one record. It belongs to one event loop; call `close` when done.

    Raise `Refused` if the directory cannot be made, and `InvalidInput` for invalid limits.
    """

    def __init__(self, section: RecordSection, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._writer = record_writer(section, clock)
        self._writer.open()
        self._recorder = ObservationRecorder()
        self._tasks = Tasks().passing("record")
        self._flush_pending = False
        self._events: ResourceWatch[ClusterEvent] | None = None
        self._node = ""
        self._versions: dict[str, str] = {}
        """Map the name of each Event of the node to its recorded resource version."""

    async def close(self) -> None:
        await self._tasks.stop()
        await asyncio.to_thread(self._writer.close)

    @property
    def trouble(self) -> str:
        """Return why the Events of the kubelet cannot be read; "" if they can or are not requested."""
        return self._events.trouble if self._events is not None else ""

    async def observation(self, seen: RecordedObservation, findings: Sequence[Finding], number: int) -> None:
        """Record an observation and its findings."""
        state = self._writer.state_due
        *rows, last = self._recorder.rows(seen, findings, number, state=state)
        for row in rows:
            self._writer.add(row)
        (self._writer.add_state if state else self._writer.add)(last)
        await self._flush()

    async def skipped(self, number: int, why: str) -> None:
        """Record that an observation was skipped because the node did not answer."""
        self._writer.add(skipped_row(self._clock(), number, why))
        await self._flush()

    def runtime_event(self, event: cri.ContainerEventResponse) -> None:
        """Record an event of the runtime."""
        row = runtime_row(event)
        if row is not None:
            self._add(row)

    def follow_events(self, api: ApiClient, node: str) -> None:
        """Start to record the Events of the kubelet of a node, including those that the API server still
        has.
        """
        if self._events is None:
            self._node = node
            handler = WatchHandler(self._replaced, self._changed, self._deleted)
            self._events = ResourceWatch(api, EVENTS, handler)
            self._tasks.start_retrying(self._events.run, "events")

    def _replaced(self, events: Sequence[ClusterEvent]) -> None:
        # After a lost connection the watch lists all Events again: those that are recorded already are
        # skipped.
        before, self._versions = self._versions, {}
        for event in events:
            name = event.metadata.name
            if event.node == self._node and before.get(name) == event.metadata.resource_version:
                self._versions[name] = before[name]
            else:
                self._changed(event)

    def _changed(self, event: ClusterEvent) -> None:
        if event.node == self._node:
            self._versions[event.metadata.name] = event.metadata.resource_version
            self._add(cluster_row(event, self._clock()))

    def _deleted(self, event: ClusterEvent) -> None:
        self._versions.pop(event.metadata.name, None)

    def _add(self, row: RecordRow) -> None:
        """Add a row between two observations, and write it within a second."""
        self._writer.add(row)
        if not self._flush_pending:
            self._flush_pending = True
            self._tasks.start(self._flush_soon())

    async def _flush_soon(self) -> None:
        await asyncio.sleep(FLUSH_SECONDS)
        # Before the write, because it does not include rows that are added while it runs.
        self._flush_pending = False
        await self._flush()

    async def _flush(self) -> None:
        # In a thread, because a disk that is slow or full must not delay the next observation.
        await asyncio.to_thread(self._writer.flush)
