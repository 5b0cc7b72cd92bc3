"""The eviction manager against real memory, processes and cgroups."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.api.events import EventRecorder
from engine.api.kubengine_config import EvictionSection
from engine.api.lifecycle import AdmissionRejected
from engine.api.pod import EmptyDirVolume, Volume
from engine.api.quantity import Quantity
from engine.eviction import measure
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.eviction.readings import NodeView, SignalReader
from engine.eviction.usage import Disk, PodUsage
from engine.metrics import Registry
from tests.contexts import node_context
from tests.eviction.private_node import MIB, PrivateNode, make_pod
from tests.waiting import eventually

pytestmark = pytest.mark.root


@contextlib.asynccontextmanager
async def managed(node: PrivateNode, tmp_path: Path, *, capacity_mib=200, pids=None, section=None, **config):
    config.setdefault("eviction_pressure_transition_period", Duration(0.3))
    registry, recorder = Registry(), EventRecorder(time.time)
    manager: Any = EvictionManager(
        node_context(
            KubeletConfiguration(pod_logs_dir=str(tmp_path / "logs"), **config),
            eviction=section or EvictionSection(interval=Duration(0.2)),
            recorder=recorder,
            registry=registry,
            root=tmp_path,
        ),
        EvictablePods(active=node.active_pods, kill=node.kill_pod, cgroup=node.pod_cgroup),
        view=NodeView(node.cgroup, memory_capacity=capacity_mib * MIB, pid_capacity=pids),
    )
    manager.events = recorder
    manager.metrics = registry.metrics
    try:
        yield manager
    finally:
        await manager.stop()


async def test_memory_pressure_evicts_in_order_one_at_a_time(node, tmp_path):
    node.run(make_pod("within", memory_request="100Mi", priority=0), mib=30)
    node.run(make_pod("greedy-but-dear", priority=1000), mib=50)
    node.run(make_pod("greedy", priority=0), mib=30)
    node.run(make_pod("greediest", priority=0), mib=40)
    hard = {"memory.available": "90Mi"}
    async with managed(node, tmp_path, eviction_hard=hard) as manager:
        await manager.start()
        await eventually(lambda: len(node.ended) >= 2)
        await eventually(lambda: manager.under_pressure == ())
        assert [name for name, _end in node.ended] == ["greediest", "greedy"]
        assert set(node.pods) == {"uid-within", "uid-greedy-but-dear"}
        first = node.ended[0][1]
        assert (first.reason, first.grace_period_seconds, first.condition_reason) == (
            "Evicted", 1, "TerminationByKubelet",
        )  # fmt: skip
        assert first.annotations["starved_resource"] == "memory"
        assert first.message.startswith(
            "The node was low on resource: memory. Threshold quantity: 90Mi, available: "
        )
        assert manager.metrics["kubelet_evictions"].values == {("memory.available",): 2}
        reasons = [event.reason for event in manager.events]
        assert reasons.count("Evicted") == 2
        assert reasons.index("EvictionThresholdMet") < reasons.index("Evicted")


async def test_a_walk_through_many_files_does_not_hold_up_an_eviction_for_memory(
    node, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measure, "WALK_SECONDS", 0.05)
    full = make_pod("full")
    empty_dir = EmptyDirVolume(size_limit=Quantity.parse("1Mi"))
    full.spec.volumes = [Volume(name="scratch", empty_dir=empty_dir)]
    eater = make_pod("eater", priority=-1)
    node.run(full, mib=10)
    node.run(eater, mib=120)
    walked = asyncio.Event()
    async with managed(node, tmp_path, eviction_hard={"memory.available": "100Mi"}) as manager:
        whole = manager.meter.whole

        async def slow(pods, *, files=True, **how):
            if files:
                await walked.wait()
                return {full.uid: PodUsage(volumes={"scratch": Disk(2 * MIB, 1)})}
            return await whole(pods, files=files, **how)

        manager.meter.whole = slow
        assert await manager.synchronize() == [eater]
        walked.set()
        await asyncio.sleep(0.3)
        assert await manager.synchronize() == [full]


async def test_condition_appears_refuses_and_clears_after_the_transition_period(node, tmp_path):
    pod = make_pod("eater")
    node.run(pod, mib=120)
    async with managed(
        node, tmp_path, eviction_hard={"memory.available": "100Mi"},
        eviction_pressure_transition_period=Duration(1.0),
    ) as manager:  # fmt: skip
        began = time.monotonic()
        assert await manager.synchronize() == [pod]
        with pytest.raises(AdmissionRejected, match=r"The node had condition: \[MemoryPressure\]\. "):
            manager.admit(make_pod("newcomer"))
        manager.admit(make_pod("burstable", memory_request="1Mi"))
        assert {c.type: c.status for c in manager.conditions()} == {
            "MemoryPressure": "True", "DiskPressure": "False", "PIDPressure": "False",
        }  # fmt: skip
        while manager.under_pressure:
            assert await manager.synchronize() == []
            await asyncio.sleep(0.05)
        assert time.monotonic() - began >= 1.0
        manager.admit(make_pod("newcomer"))


async def test_soft_threshold_waits_its_grace_and_uses_the_maximum_pod_grace(node, tmp_path):
    node.run(make_pod("eater", termination_grace_period_seconds=60), mib=120)
    async with managed(
        node, tmp_path, eviction_hard={}, eviction_soft={"memory.available": "100Mi"},
        eviction_soft_grace_period={"memory.available": "1s"}, eviction_max_pod_grace_period=30,
    ) as manager:  # fmt: skip
        began = time.monotonic()
        while not await manager.synchronize():
            assert time.monotonic() - began < 60
            await asyncio.sleep(0.05)
        assert time.monotonic() - began >= 1.0
        assert node.ended[0][1].grace_period_seconds == 30


async def test_pid_pressure_evicts_by_priority_then_processes(node, tmp_path):
    node.run(make_pod("quiet", priority=0), threads=2)
    node.run(make_pod("dear", priority=100), threads=30)
    node.run(make_pod("many", priority=0), threads=20)
    async with managed(node, tmp_path, pids=60, eviction_hard={"pid.available": "20"}) as manager:
        assert [p.metadata.name for p in await manager.synchronize()] == ["many"]
        assert manager.under_pressure == ("PIDPressure",)
        assert await manager.synchronize() == []
        assert node.ended[0][1].annotations["starved_resource"] == "pids"


async def test_minimum_reclaim_goes_on_until_it_is_met(node, tmp_path):
    for name in ("one", "two", "three"):
        node.run(make_pod(name), mib=40)
    async with managed(
        node, tmp_path, eviction_hard={"memory.available": "80Mi"},
        eviction_minimum_reclaim={"memory.available": "50Mi"},
    ) as manager:  # fmt: skip
        while await manager.synchronize():
            pass
        assert len(node.ended) == 2


async def test_critical_pods_stay(node, tmp_path):
    node.run(make_pod("critical", priority=2_000_000_000), mib=80)
    node.run(make_pod("static", annotations={"kubernetes.io/config.source": "file"}), mib=80)
    async with managed(node, tmp_path, eviction_hard={"memory.available": "150Mi"}) as manager:
        assert await manager.synchronize() == []
        assert node.ended == []
        manager.admit(make_pod("critical-too", priority=2_000_000_000))


async def test_the_kernel_wakes_the_manager_long_before_its_interval(node, tmp_path):
    section = EvictionSection(interval=Duration(600))
    async with managed(
        node, tmp_path, section=section, eviction_hard={"memory.available": "100Mi"}
    ) as manager:
        if not (Path("/sys/fs/cgroup/memory") / node.cgroup[1:] / "cgroup.event_control").exists():
            pytest.skip("this kernel has no cgroup v1 memory notifications")
        await manager.start()
        await asyncio.sleep(0.3)
        await asyncio.to_thread(node.run, make_pod("sudden"), mib=150)
        await eventually(lambda: node.ended)


async def test_a_recheck_spares_a_pod_when_pressure_has_ended(node, tmp_path):
    node.run(make_pod("innocent"), mib=20)
    node.run(make_pod("leaver"), mib=120)
    section = EvictionSection(recheck_before_evict=True)
    async with managed(
        node, tmp_path, section=section, eviction_hard={"memory.available": "100Mi"}
    ) as manager:
        measure = manager.meter.quick

        def measure_while_it_leaves(pods):
            usage = measure(pods)
            node._stop("uid-leaver")
            return usage

        manager.meter.quick = measure_while_it_leaves
        assert await manager.synchronize() == []
        assert node.ended == []


async def test_a_pod_that_will_not_die_holds_up_neither_the_rest_nor_the_end(node, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.api.lifecycle.LEAST_KILL_SECONDS", 0.2)
    node.run(make_pod("stubborn"), mib=120)
    given_up = []

    async def never(pod, _end):
        try:
            await asyncio.Event().wait()
        finally:
            given_up.append(pod.metadata.name)

    node.kill_pod = never
    async with managed(node, tmp_path, eviction_hard={"memory.available": "100Mi"}) as manager:
        assert len(await manager.synchronize()) == 1
        assert "ExceededGracePeriod" in [event.reason for event in manager.events]
        assert not given_up
    assert given_up == ["stubborn"]


async def test_memavailable_does_not_count_page_cache(node, tmp_path):
    node.run(make_pod("small"), mib=5)
    kept = NodeView(node.cgroup, memory_capacity=200 * MIB)
    reader = SignalReader(kept, nodefs=tmp_path, memory_signal="memavailable")
    try:
        observed = reader.read(1.0)["memory.available"]
        assert 150 * MIB < observed.available < 200 * MIB
    finally:
        reader.close()


async def test_describe_names_who_would_go_first(node, tmp_path):
    node.run(make_pod("small", memory_request="50Mi"), mib=10)
    node.run(make_pod("large"), mib=60)
    # Without disk signals, which depend on how full this machine's disk is.
    async with managed(node, tmp_path, eviction_hard={"memory.available": "100Mi"}) as manager:
        await manager.synchronize()
        described = await manager.describe()
        assert [c["pod"] for c in described["first"]["memory"]] == ["default/large", "default/small"]
        assert "ephemeral-storage" in (await manager.describe(disk="true"))["first"]
        with pytest.raises(InvalidInput, match="expected true or false"):
            await manager.describe(disk="maybe")
        distance = {t["signal"]: t["distance"] for t in described["thresholds"]}
        assert (
            distance["memory.available"] == described["signals"]["memory.available"]["available"] - 100 * MIB
        )


async def test_an_unreadable_signal_evicts_no_pod(node, tmp_path):
    node.run(make_pod("pod"), mib=5)
    async with managed(
        node, tmp_path, eviction_hard={"nodefs.available": "100Ti", "memory.available": "1Mi"}
    ) as manager:
        manager.reader.nodefs = tmp_path / "gone"
        manager.reader.imagefs = manager.reader.containerfs = manager.reader.nodefs
        manager._layout_known = True
        assert await manager.synchronize() == []
        assert manager.under_pressure == ()
