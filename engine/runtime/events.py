"""Distribute the container event stream, and drop listeners that fall behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from engine.runtime.objects.failures import WrongState
from engine.runtime.objects.records import Sandbox
from engine.wire import cri_v1_pb2 as cri

BACKLOG = 10_000


class Events:
    """Send every event to all listeners, in the wire form of a ContainerEventResponse."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[bytes | None]] = set()

    def notify(self, sandbox: Sandbox, subject: str, kind: cri.ContainerEventType, when: int = 0) -> None:
        """Report that container or sandbox `subject` of `sandbox` changed, at `when` (Unix nanoseconds; 0:
        now).
        """
        if not self._listeners:
            return
        event = cri.ContainerEventResponse(
            container_id=subject,
            container_event_type=kind,
            created_at=when or time.time_ns(),
            pod_sandbox_status=sandbox.status(),
            containers_statuses=[container.status() for container in sandbox.containers.values()],
        ).SerializeToString()
        for queue in list(self._listeners):
            if not _offer(queue, event):
                self._listeners.discard(queue)

    async def listen(self) -> AsyncIterator[bytes]:
        """Yield events from now on. Raise WrongState for a listener that is 10,000 events behind and must
        list again.
        """
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(BACKLOG)
        self._listeners.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
            if queue not in self._listeners:
                raise WrongState("fell too far behind; list and subscribe again", subject="event stream")
        finally:
            self._listeners.discard(queue)

    def close(self) -> None:
        """End every listener's stream."""
        for queue in self._listeners:
            _offer(queue, None)


def _offer(queue: asyncio.Queue[bytes | None], event: bytes | None) -> bool:
    """Put an event without waiting; a full queue is emptied and ended instead."""
    try:
        queue.put_nowait(event)
    except asyncio.QueueFull:
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)
        return False
    return True
