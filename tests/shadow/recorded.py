"""Observations of pods that come, fail, restart, are evicted and go, and a shadow that records them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.eviction.usage import ContainerUsage, Disk
from engine.images.records import SeenImage
from engine.record.writer import RecordWriter
from engine.shadow.judge import Judge
from engine.shadow.kinds.observation import FileSystem, MeasuredNode, MeasuredPod, Observation, SeenImages
from engine.shadow.observation_rows import RecordedObservation
from engine.shadow.recording import ObservationRecorder
from engine.shadow.second import SecondConfiguration
from tests.shadow.observations import FACTS, node, observed, pod, ran, record, requesting

PERIOD = 10.0
LOW = "The node was low on resource: memory. "


def use(available: int, **memory: int) -> MeasuredNode:
    disk = FileSystem(10**9, 5 * 10**8, 1000, None)
    return MeasuredNode(
        memory_available=available,
        memory_working_set=1000 - available,
        max_pids=2**63,
        nodefs=disk,
        imagefs=disk,
        pods={
            f"uid-{name}": MeasuredPod(
                amount, 7, None, {"c": ContainerUsage(None, Disk(3, 4), Disk(5, 6))}, {"v": Disk(8, 9)}
            )
            for name, amount in memory.items()
        },
    )


def waiting(seconds: int) -> list[dict[str, Any]]:
    text = f"back-off {seconds}s restarting failed container=c pod=p"
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": text}}
    return [{"name": "c", "ready": False, "restartCount": 1, "image": "i", "imageID": "", "state": state}]


def observations() -> Iterator[Observation]:
    """Yield observations of pods that start, fail, restart, are evicted and are deleted.

    The images and the configuration change too.
    """
    config = KubeletConfiguration(eviction_hard={"memory.available": "100"}, max_pods=5)
    large = pod("large", requesting(cpu="3"), phase="Failed", reason="OutOfcpu", message="Node didn't have")
    a, b = pod("a", requesting(memory="10")), pod("b", order=1)
    there = record(a, ran(0))
    images = SeenImages([SeenImage("i1", 5, names=("x:1",))], frozenset(["i1"]), FileSystem(1000, 100))
    yield make([a], [there], 0, config=config, use=use(500, a=40), images=images, series={"s": 1.5})
    there.containers[:] = [ran(0, code=3)]  # as the runtime's view does, which keeps its objects
    failing = pod("a", requesting(memory="10"), containerStatuses=waiting(10))
    yield make([b, failing, large], [there], 1, config=config, use=use(90, a=40, b=9), series={"s": 1.5})
    there.containers[:] = [ran(1, at=25), ran(0, code=3)]
    yield make([b, a, large], [there, record(b, ran(0))], 2, config=config, series={"n": 2.0, "s": 1.25})
    gone = pod("b", order=1, phase="Failed", reason="Evicted", message=LOW, containerStatuses=waiting(10))
    lower = KubeletConfiguration(eviction_hard={"memory.available": "50"}, max_pods=5)
    yield make([gone, a], [there], 3, config=lower, use=use(70, a=40), images=images, series={"n": 3.0})
    for number in (4, 5):
        yield make([a], [there], number, config=lower, use=use(70, a=40), of=node(cpu="1"))


def make(
    pods: Sequence[Any], records: Sequence[Any], number: int, *, images: SeenImages | None = None,
    series: dict[str, float] | None = None, **more: Any,
) -> Observation:  # fmt: skip
    held = [one.copy() for one in records]
    return replace(
        observed(pods, held, at=1000 + number * PERIOD, **more), images=images, series=series or {},
        probes_served=number > 2,
    )  # fmt: skip


def following() -> KubeletConfiguration:
    return KubeletConfiguration(eviction_hard={"memory.available": "300"}, max_pods=1)


class RecordingShadow:
    """Judge and record observations as a shadow does, with a second configuration."""

    def __init__(self, directory: Path, **limits: Any) -> None:
        self.at = 1000.0
        size = {"max_bytes": 1 << 20, "max_age": 3600.0, **limits}
        self.writer = RecordWriter(directory, clock=lambda: self.at, **size)
        self.writer.open()
        self.judge, self.recorder = Judge(), ObservationRecorder()
        self.second, self.number = SecondConfiguration(), 0

    def observe(self, seen: Observation, *, state: bool = False) -> None:
        self.at, self.number = seen.at, self.number + 1
        findings = list(self.judge.repeatable(seen))
        state = state or self.writer.state_due
        *rows, last = self.recorder.rows(RecordedObservation(seen, FACTS), findings, self.number, state=state)
        for row in rows:
            self.writer.add(row)
        (self.writer.add_state if state else self.writer.add)(last)
        self.writer.flush()
        self.second.compare(
            seen, FACTS.rules(seen.config), FACTS.next_node(following(), seen.config, seen.node)
        )

    def changes(self) -> list[Any]:
        return list(self.second.changes)
