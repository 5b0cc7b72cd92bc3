"""Keeps the agent's decisions and events in a record on disk, which outlives the pods that they are about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine.api.decisions import Decision, Decisions
from engine.api.events import Event, EventRecorder
from engine.api.kubengine_config import RecordSection
from engine.host.tasks import Tasks
from engine.record.blocks import RecordRow
from engine.record.writer import FLUSH_SECONDS, record_writer


class NodeRecorder:
    """Write decisions and events to the record of `section`, at most a second after they happen.

    Raise `InvalidInput` for limits that limit nothing.
    """

    def __init__(
        self,
        section: RecordSection,
        decisions: Decisions,
        recorder: EventRecorder,
        tasks: Tasks,
        clock: Callable[[], float],
    ) -> None:
        self._writer = record_writer(section, clock)
        self._decisions = decisions
        self._task = tasks.task("record")
        self._seen = 0
        self._news = asyncio.Event()
        recorder.listen(self._event)

    async def start(self) -> None:
        """Make the directory and begin. Raises `Refused` if it cannot be made."""
        self._writer.open()
        self._task.start(self._follow)

    async def stop(self) -> None:
        """Write what is pending and close the record."""
        await self._task.stop()
        self._take_decisions()
        await asyncio.to_thread(self._writer.close)

    def _event(self, event: Event) -> None:
        self._writer.add(
            RecordRow(
                time=event.at,
                stream="event",
                name=event.reason,
                text=event.message,
                pod=event.pod,
                uid=event.pod_uid,
                container=event.container,
            )
        )
        self._news.set()

    async def _follow(self) -> None:
        """Flush once a second while there is anything to write; sleep while nothing happens."""
        while True:
            decided = asyncio.ensure_future(self._decisions.news(self._seen))
            told = asyncio.ensure_future(self._news.wait())
            try:
                await asyncio.wait((decided, told), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for waiting in (decided, told):
                    waiting.cancel()
            await asyncio.sleep(FLUSH_SECONDS)
            self._news.clear()
            self._take_decisions()
            await asyncio.to_thread(self._writer.flush)

    def _take_decisions(self) -> None:
        for decision in self._decisions.after(self._seen):
            self._writer.add(row_of(decision))
            self._seen = decision.number


def row_of(decision: Decision) -> RecordRow:
    """Return the row of a decision."""
    return RecordRow(
        time=decision.time,
        stream="decision",
        name=f"{decision.kind} {decision.outcome}",
        text=decision.reason,
        pod=decision.pod,
        uid=decision.uid,
        container=decision.container,
        inputs=decision.inputs,
    )
