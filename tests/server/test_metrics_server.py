"""`/metrics/resource` as metrics-server reads it: what `kubectl top` shows comes from nowhere else."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.server.exchange import Request, Response
from engine.server.resource_metrics import resource_metrics
from engine.server.routes import answer
from tests.server.busy import BusyView, let_it_be_busy

_CPU, _MEMORY, _START = "cpu_usage_seconds_total", "memory_working_set_bytes", "start_time_seconds"
_SAMPLE = re.compile(r"^(node|container)_(\w+?)(\{.*\})? (\S+)(?: (\d+))?$")
NOW = 1_700_000_000.0


@dataclass
class Point:
    """Seconds of CPU, bytes, and Unix milliseconds of the last number that came."""

    cpu: float = 0.0
    memory: float = 0.0
    started: float = 0.0
    at: int = 0

    @property
    def complete(self) -> bool:
        return bool(self.cpu and self.memory)


def read(text: str) -> tuple[Point, dict[str, dict[str, Point]]]:
    """By metrics-server's rules (v0.8): a node without CPU or memory is no node, and a pod of which one
    container has a number but not both is left out as a whole. Pods are NAMESPACE/NAME."""
    node, pods = Point(), dict[str, dict[str, Point]]()
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None or sample[2] not in (_CPU, _MEMORY, _START):
            continue
        point = node
        if sample[1] == "container":
            container, pod, namespace = (
                sample[3].partition(f'{name}="')[2].partition('"')[0]
                for name in ("container", "pod", "namespace")
            )
            point = pods.setdefault(f"{namespace}/{pod}", {}).setdefault(container, Point())
        value = float(sample[4])
        if sample[2] == _START:
            point.started = value
            continue
        point.at = int(sample[5])
        if sample[2] == _CPU:
            point.cpu = value
        else:
            point.memory = value
    assert node.complete
    whole = {name: all(point.complete for point in containers.values()) for name, containers in pods.items()}
    return node, {name: containers for name, containers in pods.items() if whole[name]}


async def scraped(view: BusyView) -> str:
    response = await answer(view, Request("GET", "/metrics/resource"))
    assert isinstance(response, Response)
    assert isinstance(response.body, bytes)
    return response.body.decode()


async def test_two_readings_tell_what_a_node_and_a_pod_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_it_be_busy(monkeypatch)
    view = BusyView(tree=tmp_path / "cgroup")
    began = int(time.time() * 1000)
    before, pods_before = read(await scraped(view))
    after, pods_after = read(await scraped(view))
    ((_, was),), ((name, now),) = pods_before["default/p"].items(), pods_after["default/p"].items()
    assert name == "c"
    for first, second in ((before, after), (was, now)):
        assert began <= first.at < second.at <= time.time() * 1000
        assert second.cpu - first.cpu == 2.0  # two readings each, of a second of CPU
        assert second.memory == 9_000_000 - 1
    assert now.started == was.started > 0


def summary(*containers: dict[str, Any]) -> dict[str, Any]:
    used = {"cpu": {"usageCoreNanoSeconds": 10**9}, "memory": {"workingSetBytes": 1}}
    for part in used.values():
        part["time"] = "2023-11-14T22:13:20Z"  # type: ignore[assignment]
    named = [{"startTime": "2023-11-14T22:13:20Z", **each} for each in containers]
    reference = {"name": "p", "namespace": "n", "uid": "u"}
    return {"node": used, "pods": [{"podRef": reference, "containers": [{"name": "a", **used}, *named]}]}


@pytest.mark.parametrize(
    "part",
    [{}, {"cpu": {"time": "2023-11-14T22:13:20Z"}}, {"memory": {"time": "2023-11-14T22:13:20Z"}}],
    ids=["nothing", "no CPU time", "no memory"],
)
def test_a_container_of_which_nothing_is_known_does_not_hide_its_pod(part: dict[str, Any]) -> None:
    _, pods = read("".join(resource_metrics(summary({"name": "b", **part}), NOW)))
    assert list(pods["n/p"]) == ["a"]


def test_a_pod_is_left_out_while_a_container_has_only_one_number() -> None:
    half = {"name": "b", "memory": {"time": "2023-11-14T22:13:20Z", "workingSetBytes": 1}}
    assert read("".join(resource_metrics(summary(half), NOW)))[1] == {}
