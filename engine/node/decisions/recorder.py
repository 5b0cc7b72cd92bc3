"""Keeps decisions, what they were computed from, and use in a record on disk, which outlives the pods.

The record suffices to repeat the agent's decisions: it has the configuration, the node, each pod that is
judged, the signals of each round of eviction, and what was ranked. Once a minute it gets the use of all pods
and containers. From time to time it gets all that the next decisions depend on, so that it can be played from
there when the segments before are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from engine.api.decisions import Decision, Measured
from engine.api.encoding.json_text import json_encoder
from engine.api.errors import KubengineError
from engine.api.events import Event
from engine.host.node_context import NodeContext
from engine.record.blocks import RecordRow
from engine.record.writer import FLUSH_SECONDS, record_writer

if TYPE_CHECKING:
    from engine.node.stats.used import NodeUsage

USE_SECONDS: Final = 60.0
_encode = json_encoder(str)


class NodeRecorder:
    """Write to the record that the configuration names, at most a second after something happens.

    `usage` returns what pods and containers use. Raise `InvalidInput` for limits that limit nothing.
    """

    def __init__(self, context: NodeContext, usage: Callable[[], Awaitable[NodeUsage]]) -> None:
        self._writer = record_writer(context.kubengine_config.record, context.clock)
        self._context, self._decisions = context, context.decisions
        self._task, self._use_task = context.tasks.task("record"), context.tasks.task("record-use")
        self._seen = 0
        self._arriving: dict[str, Any] = {}
        self._news = asyncio.Event()
        self._usage = usage
        context.recorder.listen(self._event)
        context.decisions.record_measured = self._measured

    async def start(self) -> None:
        """Make the directory and begin. Raises `Refused` if it cannot be made."""
        self._writer.open()
        beginning = Measured("node", "configuration", inputs=self._about())
        self._add(self._row(beginning), self._writer.add_state)
        self._task.start(self._follow)
        self._use_task.start(self._follow_use)

    async def stop(self) -> None:
        """Write what is pending and close the record."""
        await self._use_task.stop()
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

    def _measured(self, measured: Measured) -> None:
        if measured.name == "arrives":
            self._arriving[measured.uid] = measured.inputs["pod"]
        elif measured.stream == "pod":
            self._arriving.pop(measured.uid, None)
        self._add(self._row(measured), self._writer.add)

    def _add(self, row: RecordRow, add: Callable[[RecordRow], None]) -> None:
        """Add a row after the decisions before it."""
        # A replay applies rows in their order: a measurement belongs to the decision that follows it.
        self._take_decisions()
        add(row)
        self._news.set()

    def _row(self, measured: Measured) -> RecordRow:
        """Return the row of a measurement. What may change is encoded now."""
        return RecordRow(
            time=self._context.clock(),
            stream=measured.stream,
            name=measured.name,
            text=measured.keys,
            pod=measured.pod,
            uid=measured.uid,
            inputs={name: msgspec.Raw(_encode(value)) for name, value in measured.inputs.items()},
            values=measured.values,
        )

    def _add_state(self) -> None:
        """Add all that is remembered, unless a decision is being carried out: then the next call does."""
        remembered = {part: ask() for part, ask in self._decisions.remembered.items()}
        if any(part is None for part in remembered.values()):
            return
        about = {**self._about(), **remembered, "arriving": list(self._arriving.values())}
        self._add(self._row(Measured("node", "state", inputs=about)), self._writer.add_state)

    def _about(self) -> Mapping[str, Any]:
        context = self._context
        return {"kubelet": context.config, "kubengine": context.kubengine_config, "name": context.name}

    async def _follow_use(self) -> None:
        while True:
            await asyncio.sleep(USE_SECONDS)
            with suppress(KubengineError, OSError):
                for measured in _use(await self._usage()):
                    self._measured(measured)

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
            # One write for all that happens in a second; what comes during the write sets the event again.
            await asyncio.sleep(FLUSH_SECONDS)
            self._news.clear()
            self._take_decisions()
            if self._writer.state_due:
                self._add_state()
            await asyncio.to_thread(self._writer.flush)

    def _take_decisions(self) -> None:
        for decision in self._decisions.after(self._seen):
            self._writer.add(row_of(decision))
            self._seen = decision.number


def _use(usage: NodeUsage) -> Iterator[Measured]:
    """Yield what pods and containers use: the working set in bytes and CPU time in nanoseconds, for pods also
    processes; -1 if it is not known.
    """
    memory, cpu, processes = (
        column.tolist()
        for column in (usage.table.working_set, usage.table.column("cpu"), usage.table.column("processes"))
    )
    pods = [(pod.record.uid, pod.group.row) for pod in usage.pods]
    yield Measured(
        "use",
        "pods memory cpu processes",
        " ".join(uid for uid, _ in pods),
        [amount for _, row in pods for amount in (memory[row], cpu[row], processes[row])],
    )
    containers = [
        (f"{pod.record.uid}/{name}", group.row)
        for pod in usage.pods
        for name, (group, _) in pod.by_name.items()
    ]
    yield Measured(
        "use",
        "containers memory cpu",
        " ".join(key for key, _ in containers),
        [amount for _, row in containers for amount in (memory[row], cpu[row])],
    )


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
