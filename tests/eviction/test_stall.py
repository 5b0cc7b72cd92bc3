"""Eviction by how long pods wait for memory: real stall of real processes, and the rules alone."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.api.events import EventRecorder
from engine.api.kubengine_config import EvictionSection
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.eviction.pressure import PressureTracker
from engine.eviction.readings import NodeView
from engine.eviction.signals import MEMORY_STALL, SignalObservation
from engine.eviction.stall import causes, pod_stalls, stall_thresholds, stalled
from engine.eviction.thresholds import parse_thresholds
from engine.host.cgroupfs.mounts import find_mounts
from engine.metrics import Registry
from tests.contexts import node_context
from tests.eviction.private_node import make_pod
from tests.eviction.test_pressure_events import MOUNTS, UNIFIED, group, needs_pressure, thrash  # noqa: F401
from tests.laid_out_cgroups import laid_out
from tests.waiting import eventually

TEXT = b"""some avg10=12.34 avg60=5.00 avg300=0.99 total=123
full avg10=1.50 avg60=0.10 avg300=0.00 total=45
"""


def test_a_pressure_file_in_hundredths_of_a_percent():
    assert stalled(TEXT, b"some", b"avg10") == 1234
    assert stalled(TEXT, b"full", b"avg60") == 10
    for broken in (b"", b"some total=1\n", b"full avg10=x avg60=1\n", b"full avg10\n"):
        with pytest.raises(ValueError):
            stalled(broken, b"full", b"avg10")


def test_those_who_stall_most_are_the_causes():
    pods = [make_pod(name) for name in ("hog", "near", "victim", "unknown")]
    stalls = {"uid-hog": 4000, "uid-near": 2000, "uid-victim": 1999}
    assert [pod.metadata.name for pod in causes(pods, stalls)] == ["hog", "near"]
    assert causes(pods, {"uid-hog": 0}) == []
    assert causes(pods, {}) == []


def test_the_signal_is_ours_and_no_kubelets(tmp_path: Path):
    assert stall_thresholds(EvictionSection(), laid_out(tmp_path)) == []
    (threshold,) = stall_thresholds(EvictionSection(memory_stall=40), laid_out(tmp_path))
    assert (threshold.signal, threshold.limit(10_000), threshold.grace_period) == (MEMORY_STALL, 6000, 30)
    with pytest.raises(InvalidInput, match=r"unsupported eviction signal memory\.stall"):
        parse_thresholds([], {MEMORY_STALL: "10%"}, {}, {}, {})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (EvictionSection(memory_stall=100), "eviction.memoryStall: expected 1 to 99"),
        (EvictionSection(memory_stall=-1), "eviction.memoryStall: expected 1 to 99"),
        (EvictionSection(memory_stall=5, memory_stall_for=Duration(0)), "eviction.memoryStallFor: expected"),
    ],
)
def test_impossible_values_are_refused(tmp_path: Path, section: EvictionSection, message: str):
    with pytest.raises(InvalidInput, match=message):
        stall_thresholds(section, laid_out(tmp_path))


def test_v1_has_no_stall_of_pods(tmp_path: Path):
    (tmp_path / "memory").mkdir()
    with pytest.raises(InvalidInput, match="needs cgroup v2"):
        stall_thresholds(EvictionSection(memory_stall=40), laid_out(tmp_path))


@needs_pressure
@pytest.mark.root
async def test_only_the_thrashing_pod_is_evicted(
    group: Path,  # noqa: F811
    private_cgroup_root: str,
    tmp_path: Path,
):
    """A pod thrashes within its own limit; its neighbour, which ranks before it, does nothing."""
    calm, hog = make_pod("calm"), make_pod("hog", memory_request="1Gi", priority=1000)
    pods, registry, decisions = [calm, hog], Registry(), Decisions(time.time)
    for pod in pods:
        (group / pod.uid).mkdir()
    data = f"/var/tmp/{group.name}"
    # The pod's group is last: on cgroup v2 both are in one hierarchy, and a process is in one group of it.
    process = thrash(data, MOUNTS.directory("memory", private_cgroup_root), group / hog.uid)

    async def kill(pod, _end):
        process.kill()
        await asyncio.to_thread(process.wait)
        pods.remove(pod)

    now, unified = [0.0], find_mounts(str(UNIFIED))
    manager = EvictionManager(
        node_context(
            KubeletConfiguration(eviction_hard={}),
            eviction=EvictionSection(memory_stall=1, memory_stall_for=Duration(30)),
            recorder=EventRecorder(time.time),
            decisions=decisions,
            registry=registry,
            root=tmp_path,
        ),
        EvictablePods(
            active=lambda: list(pods), kill=kill, cgroup=lambda uid: f"{private_cgroup_root}/{uid}"
        ),
        view=NodeView(private_cgroup_root, memory_capacity=1 << 30, mounts=unified),
        monotonic=lambda: now[0],
    )
    try:
        for _ in range(2):
            await eventually(
                lambda: (
                    manager.reader.read(now[0])[MEMORY_STALL].available < 9900
                    and pod_stalls([hog], lambda uid: f"{private_cgroup_root}/{uid}", unified)[hog.uid] > 0
                )
            )
            assert await manager.synchronize() in ([], [hog])
            now[0] += 31
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        Path(data).unlink(missing_ok=True)
        for pod in (calm, hog):
            (group / pod.uid).rmdir()
    assert pods == [calm]
    assert manager.under_pressure == ("MemoryPressure",)
    assert registry.metrics["kubelet_evictions"].values == {(MEMORY_STALL,): 1}
    (evicted,) = decisions.after(0)
    assert evicted.pod == "default/hog"
    assert evicted.inputs["stall"] > 0
    assert "All pods waited for memory" in evicted.reason
    assert manager.tracker.first_met == {}
    await manager.stop()


def test_after_an_eviction_the_interval_starts_again(tmp_path: Path):
    (threshold,) = stall_thresholds(EvictionSection(memory_stall=40), laid_out(tmp_path))
    tracker = PressureTracker([threshold], 300)

    def act(now: float) -> bool:
        return bool(tracker.update({MEMORY_STALL: SignalObservation(5000, 10_000, now)}, now).act_on)

    assert [act(now) for now in (0, 29, 30)] == [False, False, True]
    tracker.restart_grace(threshold)
    assert [act(now) for now in (40, 69, 70)] == [False, False, True]
