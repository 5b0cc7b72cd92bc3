"""How the CPUs that are not exclusive are divided among Burstable pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import cpu_set
from engine.api.documents import convert
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import CpusSection
from engine.api.pod import Pod
from engine.cli.cpus import cpu_map
from engine.cpumanager.manager import CpuManager
from engine.cpumanager.moving import RunningContainer
from engine.cpumanager.options import StaticOptions
from engine.cpumanager.shared_cpus import SharedCpus, SharingPod
from engine.cpumanager.state import CpuState
from engine.cpumanager.static_policy import StaticCpuPolicy
from engine.cpumanager.system_processes import SystemProcesses
from engine.cpumanager.topology import CpuTopology, Processor
from engine.metrics import Registry
from engine.topologymanager.policy import Numa
from tests.cpumanager.rig import Rig, pinned_pod, settled

WEB = {"name": "web", "namespaces": ["web"], "minCPUs": 1, "maxCPUs": 4}
BATCH = {"name": "batch", "labels": {"kind": "batch"}}


def section(**fields: Any) -> CpusSection:
    return convert(fields, CpusSection, "cpus")


def policy_of(shared: int = 0xFFFF) -> StaticCpuPolicy:
    """Sixteen CPUs: eight cores of two threads (0 and 8, …), four caches, two NUMA nodes; 0 is reserved."""
    topology = CpuTopology([Processor(cpu, cpu % 8, cpu % 8 // 2, 0, cpu % 8 // 4) for cpu in range(16)])
    state = CpuState(topology.cpus)
    state.assign("pinned", "c", topology.cpus & ~shared)
    return StaticCpuPolicy(topology, 1, StaticOptions(), Numa((0, 1)), state)


def pod(uid: str, milli: int, namespace: str = "other", **labels: str) -> SharingPod:
    return SharingPod(uid, namespace, labels, milli)


def held(shares: SharedCpus, *uids: str) -> list[str]:
    return [cpu_set.text(shares.of(uid)) for uid in uids]


def test_a_pool_grows_and_shrinks_with_its_pods() -> None:
    shares = SharedCpus(section(pools=[WEB, BATCH]), 0)
    policy = policy_of()
    web = [pod("a", 1500, "web"), pod("b", 1000, "web")]
    shares.divide(policy, web[:1])
    assert held(shares, "a", "x") == ["1,9", "0,2-8,10-15"]
    shares.divide(policy, [*web, pod("j", 500, kind="batch")])
    assert held(shares, "a", "b", "j", "x") == ["1,8-9", "1,8-9", "2", "0,3-7,10-15"]
    shares.divide(policy, [*web, pod("c", 9000, "web")])
    assert shares.pools["web"].bit_count() == 4  # its bound
    assert shares.pools["batch"] == 0
    shares.divide(policy, web[1:])
    assert shares.pools["web"].bit_count() == 1
    shares.divide(policy, [])
    assert shares.pools["web"].bit_count() == 1  # its least


def test_exclusive_cpus_come_first_and_one_cpu_stays_for_others() -> None:
    shares = SharedCpus(section(pools=[{"name": "all", "namespaces": ["web"]}]), 0)
    shares.divide(policy_of(), [pod("a", 90_000, "web")])
    assert held(shares, "a", "x") == ["1-15", "0"]
    shares.divide(policy_of(0x0F0F), [pod("a", 90_000, "web")])
    assert held(shares, "a", "x") == ["1-3,8-11", "0"]


@pytest.mark.parametrize(("together", "expected"), [("cache", 4), ("node", 8)])
def test_pods_stay_within_a_cache_or_a_node_where_they_fit(together: str, expected: int) -> None:
    shares = SharedCpus(section(keepTogether=together), 0)
    pods = [pod("a", 3000), pod("b", 3000), pod("big", 20_000), pod("small", 0)]
    shares.divide(policy_of(), pods)
    first = held(shares, "a", "b", "big", "small")
    assert [cpu_set.parse(one).bit_count() for one in first] == [expected, expected, 16, 16]
    assert first[0] != first[1]
    shares.divide(policy_of(), [*pods[1:], *(pod(f"n{i}", 1000) for i in range(6))])
    assert held(shares, "b") == [first[1]]  # nobody moves while they fit


def test_isolated_cpus_stay_free() -> None:
    shares = SharedCpus(section(respectIsolated=True), 0xF000)
    shares.divide(policy_of(), [pod("a", 100)])
    assert held(shares, "a", "x") == ["0-11", "0-11"]
    shares.divide(policy_of(0xF000), [])
    assert held(shares, "x") == ["12-15"]  # better than none
    shares = SharedCpus(section(keepTogether="node"), 0xF000)
    shares.divide(policy_of(), [])
    assert held(shares, "x") == ["0-15"]


PODS = st.lists(
    st.tuples(st.sampled_from(["web", "other"]), st.sampled_from(["batch", "x"]), st.integers(0, 6000)),
    max_size=8,
)


@given(
    st.lists(st.tuples(st.integers(1, 0xFFFF), PODS), min_size=1, max_size=6),
    st.sampled_from(["", "cache", "node"]),
    st.integers(0, 0xFFFF),
)
def test_everyone_has_cpus_and_pools_have_their_own(
    steps: list[tuple[int, list[tuple[str, str, int]]]], together: str, isolated: int
) -> None:
    fields = {"pools": [WEB, BATCH], "keepTogether": together, "respectIsolated": True}
    shares = SharedCpus(section(**fields), isolated)
    for shared, pods in steps:
        policy = policy_of(shared | 1)
        given = [pod(f"p{i}", milli, space, kind=kind) for i, (space, kind, milli) in enumerate(pods)]
        shares.divide(policy, given)
        used = 0
        for cpus in shares.pools.values():
            assert not cpus & (used | policy.reserved | shares.rest)
            used |= cpus
        assert shares.rest
        for uid in ["x", *(one.uid for one in given)]:
            assert shares.of(uid)
            assert not shares.of(uid) & ~policy.state.shared


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ([{"name": "", "namespaces": ["a"]}], r"cpus.pools\[0\].name"),
        ([WEB, WEB], r"cpus.pools\[0\].name"),
        ([{"name": "a"}], r"cpus.pools\[0\]: needs namespaces or labels"),
        ([WEB | {"minCPUs": 5}], r"cpus.pools\[0\]: expected"),
    ],
)
def test_invalid_pools_are_refused(pools: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SharedCpus(section(pools=pools), 0)


def test_only_burstable_pods_count() -> None:
    assert SharingPod.of(pinned_pod("a", 2)) is None
    assert SharingPod.of(burstable("b", "web")) == SharingPod("b", "web", {}, 1000)


def burstable(uid: str, namespace: str) -> Pod:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    meta = {"name": uid, "namespace": namespace, "uid": uid}
    return convert({"metadata": meta, "spec": {"containers": [container]}}, Pod, "pod")


async def test_running_containers_follow_their_pool(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    active = [burstable("w", "web")]
    rig.running = [RunningContainer("w", "c", "w"), RunningContainer("x", "c", "x")]
    async with rig.agent() as manager:
        manager.divide_shared(SharedCpus(section(pools=[WEB]), 0), lambda: active)
        manager.containers_changed()
        assert manager.cpuset(active[0], "c") == "4"
        rig.start_pod(manager, pinned_pod("a", 2))
        await settled(manager)
        assert rig.moved == {"x": "0,2-3,6-7", "id-of-a": "1,5"}
        active.append(burstable("w2", "web"))
        rig.running.append(RunningContainer("w2", "c", "w2"))
        assert manager.cpuset(active[1], "c") == "2,4"
        rig.start_pod(manager, pinned_pod("b", 2))
        await settled(manager)
        assert "   CPUs 3-4  pool web, pods: 2" in cpu_map(manager.describe())
        assert rig.moved["w"] == "3-4"  # pod b has CPU 2 now
    pooled = [one.inputs["cpus"] for one in rig.decisions.after(0) if one.outcome == "pooled"]
    assert pooled == ["4", "2,4", "3-4"]


async def test_system_processes_leave_exclusive_cpus(tmp_path: Path) -> None:
    group = tmp_path / "cgroup/system.slice"
    group.mkdir(parents=True)
    (group / "cpuset.cpus").write_text("")
    rig = Rig(tmp_path)
    async with rig.agent() as manager:
        keep_off(manager, rig, tmp_path / "cgroup")
        rig.start_pod(manager, pinned_pod("a", 2))
        await settled(manager)
        assert (group / "cpuset.cpus").read_text() == "0,2-4,6-7"
        manager.release("a")
        await settled(manager)
        assert (group / "cpuset.cpus").read_text() == "0-7"
        (group / "cpuset.cpus").unlink()
        (group / "cpuset.cpus").mkdir()  # refuses to be written
        rig.start_pod(manager, pinned_pod("b", 2))
        await settled(manager)
        assert rig.moved["id-of-b"] == "1,5"


def keep_off(manager: CpuManager, rig: Rig, root: Path) -> None:
    manager.keep_off(SystemProcesses(["/system.slice"], root, decisions=rig.decisions, registry=Registry()))


@pytest.mark.parametrize("group", ["", "/", "../x", "/absent.slice"])
def test_a_cgroup_without_a_cpuset_is_refused(tmp_path: Path, group: str) -> None:
    rig = Rig(tmp_path)
    (tmp_path / "cpuset.cpus").write_text("")
    with pytest.raises(InvalidInput, match="no cgroup"):
        SystemProcesses([group], tmp_path, decisions=None, registry=Registry())  # type: ignore[arg-type]
    assert rig.moved == {}


async def test_a_driver_that_gives_cpus_is_reported(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    async with rig.agent() as manager:
        manager.driver_connected("gpu.example.com")
        assert rig.said("CPUDriverClash") == []
        manager.driver_connected("dra.cpu")
        assert len(rig.said("CPUDriverClash")) == 1
    rig.config = {"cpuManagerPolicy": "none"}
    async with rig.agent() as manager:
        manager.driver_connected("dra.cpu")
        assert rig.said("CPUDriverClash") == []
