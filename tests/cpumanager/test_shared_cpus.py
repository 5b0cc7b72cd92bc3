"""How the CPUs that are not exclusive are divided among Burstable pods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import cpu_set
from engine.api.documents import convert
from engine.api.errors import InvalidInput, Refused
from engine.api.kubengine_config import CpusSection
from engine.api.pod import Pod
from engine.cli.cpus import cpu_map
from engine.cpumanager.division import Division
from engine.cpumanager.manager import CpuManager
from engine.cpumanager.moving import RunningContainer
from engine.cpumanager.options import StaticOptions
from engine.cpumanager.recent_use import READINGS, RecentCpuUse
from engine.cpumanager.shared_cpus import SharedCpus, SharingPod
from engine.cpumanager.state import CpuState
from engine.cpumanager.static_policy import StaticCpuPolicy
from engine.cpumanager.system_processes import SystemProcesses
from engine.cpumanager.topology import CpuTopology, Processor
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.topologymanager.policy import Numa
from tests.cpumanager.rig import Rig, pinned_pod, settled

WEB: dict[str, Any] = {"name": "web", "namespaces": ["web"], "minCPUs": 1, "maxCPUs": 4}
BATCH: dict[str, Any] = {"name": "batch", "labels": {"kind": "batch"}}


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


def divide(
    shares: SharedCpus, policy: StaticCpuPolicy, pods: list[SharingPod], use: RecentCpuUse | None = None
) -> None:
    shares.divide(policy, pods, use or RecentCpuUse())


def used(**milli: int) -> RecentCpuUse:
    """Return what is known of pods that have used this much CPU for as long as it counts."""
    use = RecentCpuUse()
    for i in range(READINGS + 1):
        use.add(10.0 * i, {uid: i * one / 100 for uid, one in milli.items()})
    return use


def held(shares: SharedCpus, *uids: str) -> list[str]:
    return [cpu_set.text(shares.of(uid)) for uid in uids]


def test_a_pool_grows_and_shrinks_with_its_pods() -> None:
    shares = SharedCpus(section(pools=[WEB, BATCH]), 0)
    policy = policy_of()
    web = [pod("a", 1500, "web"), pod("b", 1000, "web")]
    divide(shares, policy, web[:1])
    assert held(shares, "a", "x") == ["1,9", "0,2-8,10-15"]
    divide(shares, policy, [*web, pod("j", 500, kind="batch")])
    assert held(shares, "a", "b", "j", "x") == ["1,8-9", "1,8-9", "2", "0,3-7,10-15"]
    divide(shares, policy, [*web, pod("c", 9000, "web")])
    assert shares.pools["web"].bit_count() == 4  # its bound
    assert shares.pools["batch"] == 0
    divide(shares, policy, web[1:])
    assert shares.pools["web"].bit_count() == 1
    divide(shares, policy, [])
    assert shares.pools["web"].bit_count() == 1  # its least


BY_USE = WEB | {"sizedBy": "use", "maxCPUs": 8}


def test_a_pool_sized_by_use_follows_what_its_pods_use() -> None:
    shares = SharedCpus(section(pools=[BY_USE]), 0)
    pods = [pod("a", 2000, "web"), pod("b", 1000, "web")]

    def size(use: RecentCpuUse) -> int:
        divide(shares, policy_of(), pods, use)
        return shares.pools["web"].bit_count()

    assert size(RecentCpuUse()) == 3  # what they request, until they have been measured
    assert size(used(a=3000, b=1000)) == 5  # a fifth to spare
    first = shares.pools["web"]
    assert size(used(a=100, b=100)) == 1
    assert not shares.pools["web"] & ~first  # keeps some of its CPUs
    assert size(used(a=3000)) == 5  # b requests 1 and was not measured
    assert size(used(a=9000, b=9000)) == 8  # the bound


def test_requests_come_before_use_beyond_them() -> None:
    shares = SharedCpus(section(pools=[BY_USE, BATCH]), 0)
    policy = policy_of(0xFF)
    pods = [pod("a", 2000, "web"), pod("j", 4000, kind="batch")]
    divide(shares, policy, pods[:1], used(a=8000))
    assert shares.pools["web"].bit_count() == 7
    divide(shares, policy, pods, used(a=8000))
    assert [cpus.bit_count() for cpus in shares.pools.values()] == [3, 4]


def test_a_pool_does_not_grow_onto_cpus_that_another_keeps() -> None:
    shares = SharedCpus(section(pools=[BY_USE, BATCH]), 0)
    pods = [pod("a", 1000, "web"), pod("j", 4000, kind="batch")]
    divide(shares, policy_of(), pods)
    before = shares.pools["batch"]
    divide(shares, policy_of(), pods, used(a=6000))
    assert shares.pools["web"].bit_count() == 8
    assert shares.pools["batch"] == before


def test_use_is_the_highest_of_the_last_minute() -> None:
    use = RecentCpuUse()
    assert use.demand("a", 500) == 500
    for i, seconds in enumerate([0, 40, 41, 42, 43, 44, 45]):
        use.add(10.0 * i, {"a": float(seconds)})
    assert use.demand("a", 500) == 5000
    use.add(70.0, {"a": 46.0})
    assert use.demand("a", 500) == 125
    use.add(80.0, {"a": 0.0})  # its cgroup was created again
    assert use.demand("a", 500) == 125
    use.add(80.0, {"a": 1.0})  # no time has passed
    assert use.demand("a", 500) == 125
    use.add(90.0, {})
    assert use.demand("a", 500) == 500


async def test_containers_follow_the_measured_use(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    now, used_seconds = 0.0, 0.0
    rig.running = [RunningContainer("w", "c", "w")]

    def seconds(uid: str) -> float:
        if uid != "w":
            raise Refused("no cgroup", subject=uid)
        return used_seconds

    active = [burstable("w", "web"), burstable("new", "web"), burstable("x", "other")]
    async with rig.agent() as manager:
        part = division(rig, [BY_USE], lambda: active, seconds, monotonic=lambda: now)
        manager.divide_shared(part)
        manager.containers_changed()
        await settled(manager)
        assert cpu_set.parse(rig.moved["w"]).bit_count() == 2
        for _ in range(2):
            part.measure()
            now, used_seconds = now + 10, used_seconds + 30
        manager.containers_changed()
        await settled(manager)
        assert cpu_set.parse(rig.moved["w"]).bit_count() == 5  # 3 and a margin, and what the new pod requests


def test_exclusive_cpus_come_first_and_one_cpu_stays_for_others() -> None:
    shares = SharedCpus(section(pools=[{"name": "all", "namespaces": ["web"]}]), 0)
    divide(shares, policy_of(), [pod("a", 90_000, "web")])
    assert held(shares, "a", "x") == ["1-15", "0"]
    divide(shares, policy_of(0x0F0F), [pod("a", 90_000, "web")])
    assert held(shares, "a", "x") == ["1-3,8-11", "0"]


@pytest.mark.parametrize(("together", "expected"), [("cache", 4), ("node", 8)])
def test_pods_stay_within_a_cache_or_a_node_where_they_fit(together: str, expected: int) -> None:
    shares = SharedCpus(section(keepTogether=together), 0)
    pods = [pod("a", 3000), pod("b", 3000), pod("big", 20_000), pod("small", 0)]
    divide(shares, policy_of(), pods)
    first = held(shares, "a", "b", "big", "small")
    assert [cpu_set.parse(one).bit_count() for one in first] == [expected, expected, 16, 16]
    assert first[0] != first[1]
    divide(shares, policy_of(), [*pods[1:], *(pod(f"n{i}", 1000) for i in range(6))])
    assert held(shares, "b") == [first[1]]  # nobody moves while they fit


def test_isolated_cpus_stay_free() -> None:
    shares = SharedCpus(section(respectIsolated=True), 0xF000)
    divide(shares, policy_of(), [pod("a", 100)])
    assert held(shares, "a", "x") == ["0-11", "0-11"]
    divide(shares, policy_of(0xF000), [])
    assert held(shares, "x") == ["12-15"]  # better than none
    shares = SharedCpus(section(keepTogether="node"), 0xF000)
    divide(shares, policy_of(), [])
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
        divide(shares, policy, given)
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


def division(
    rig: Rig,
    pools: list[dict[str, Any]],
    active: Callable[[], list[Pod]],
    seconds: Callable[[str], float] = lambda uid: 0.0,
    **options: Any,
) -> Division:
    shares = SharedCpus(section(pools=pools), 0)
    return Division(
        shares, active=active, cpu_seconds=seconds, decisions=rig.decisions, tasks=Tasks(), **options
    )


async def test_running_containers_follow_their_pool(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    active = [burstable("w", "web")]
    rig.running = [RunningContainer("w", "c", "w"), RunningContainer("x", "c", "x")]
    async with rig.agent() as manager:
        manager.divide_shared(division(rig, [WEB], lambda: active))
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
        assert rig.messages("CPUDriverClash") == []
        manager.driver_connected("dra.cpu")
        assert len(rig.messages("CPUDriverClash")) == 1
    rig.config = {"cpuManagerPolicy": "none"}
    async with rig.agent() as manager:
        manager.driver_connected("dra.cpu")
        assert rig.messages("CPUDriverClash") == []
