"""Records of nodes: what a day costs to read and to play again.

`pytest bench/bench_replay.py`. The goal is a day of 100 nodes with 100 pods each in less than 10 s on two
cores; here are ten nodes. A round of eviction every 10 s, the use of pods every minute, 12 new pods an hour.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api.config import KubeletConfiguration
from engine.api.encoding.json_text import json_encoder
from engine.api.kubengine_config import KubengineConfiguration
from engine.plan.replay.answer import replay_answer
from engine.plan.replay.recorded import NodeRecording, read_recorded
from engine.record.blocks import RecordRow, encode_block
from engine.record.writer import BLOCK_ROWS

NODES, PODS, DAY = 10, 100, 86_400
BEGAN = 1.79e9
MIB, GIB = 2**20, 2**30
KEYS = " ".join(
    ["memory.available", "allocatableMemory.available", "pid.available"]
    + [f"{name}.{of}" for name in ("nodefs", "imagefs", "containerfs") for of in ("available", "inodesFree")]
)
_encode = json_encoder(str)


def plain(value: object) -> Any:
    return msgspec.json.decode(_encode(value))


class Day:
    """Make the rows that a node records in a day."""

    def __init__(self, seed: int) -> None:
        self._random, self._seed = random.Random(seed), seed
        self._made = 0
        self._live: list[str] = []

    def rows(self) -> Iterator[RecordRow]:
        name = f"node-{self._seed}"
        config = KubeletConfiguration(eviction_hard={"memory.available": "100Mi", "nodefs.available": "10%"})
        about = {"kubelet": plain(config), "kubengine": plain(KubengineConfiguration()), "name": name}
        amounts = {"cpu": "64", "memory": "250Gi", "pods": "110", "ephemeral-storage": "900Gi"}
        node = {"metadata": {"name": name}, "status": {"allocatable": amounts}}
        yield RecordRow(time=BEGAN, stream="node", name="configuration", inputs=about)
        yield RecordRow(time=BEGAN, stream="node", name="node", inputs={"node": node})
        for _ in range(PODS):
            yield from self._arrive(0.0)
        for second in range(10, DAY, 10):
            yield self._signals(second)
            if second % 60 == 0:
                yield self._use(second)
            if second % 300 == 0:
                uid = self._live.pop(0)
                for what in ("leaves", "removed"):
                    yield RecordRow(time=BEGAN + second, stream="pod", name=what, uid=uid)
                yield from self._arrive(second)

    def _arrive(self, second: float) -> Iterator[RecordRow]:
        uid = f"{self._seed}-{self._made}"
        self._made += 1
        self._live.append(uid)
        requests = {"cpu": "100m", "memory": "1Gi"}
        spec = {"containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}]}
        pod = {"metadata": {"name": uid, "namespace": "default", "uid": uid}, "spec": spec}
        of: dict[str, Any] = {"time": BEGAN + second, "pod": f"default/{uid}", "uid": uid}
        yield RecordRow(stream="pod", name="arrives", inputs={"pod": pod}, **of)
        yield RecordRow(stream="pod", name="judged", **of)
        yield RecordRow(stream="decision", name="admission admitted", inputs={"qos": "Burstable"}, **of)

    def _signals(self, second: int) -> RecordRow:
        free = self._random.randrange
        values = [second * 10**6, second * 10**6, 40 * GIB + free(GIB), 256 * GIB]
        values += [30 * GIB + free(GIB), 250 * GIB, 32_000 - free(100), 32_768]
        values += [500 * GIB + free(MIB), 1000 * GIB, 10**7, 2 * 10**7] * 3
        at = BEGAN + second
        return RecordRow(time=at, stream="pressure", name="signals shared", text=KEYS, values=values)

    def _use(self, second: int) -> RecordRow:
        values = [
            amount
            for _ in self._live
            for amount in (GIB + self._random.randrange(MIB) * 40, second * 10**7, 20)
        ]
        keys = " ".join(self._live)
        name = "pods memory cpu processes"
        return RecordRow(time=BEGAN + second, stream="use", name=name, text=keys, values=values)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    found = []
    for seed in range(NODES):
        directory = tmp_path_factory.mktemp("record")
        rows = list(Day(seed).rows())
        with (directory / f"{round(BEGAN * 1000):015d}.krec").open("wb") as file:
            for at in range(0, len(rows), BLOCK_ROWS):
                file.write(encode_block(rows[at : at + BLOCK_ROWS]))
        found.append(directory)
    return found


@pytest.fixture(scope="module")
def nodes(records: list[Path]) -> list[NodeRecording]:
    return [read_recorded(directory) for directory in records]


def test_read_a_day(benchmark: Any, records: list[Path]) -> None:
    read = benchmark(lambda: [read_recorded(directory) for directory in records])
    assert len(read) == NODES


def test_play_a_day(benchmark: Any, nodes: list[NodeRecording]) -> None:
    answer = benchmark(lambda: replay_answer(nodes))
    assert {row["decision"] for row in answer.table.to_pylist()} == {"same"}


def test_play_a_day_with_a_higher_threshold(benchmark: Any, nodes: list[NodeRecording]) -> None:
    config = KubeletConfiguration(eviction_hard={"memory.available": f"{40 * 1024 + 1}Mi"})
    answer = benchmark(lambda: replay_answer(nodes, config))
    assert "evict" in {row["decision"] for row in answer.table.to_pylist()}
