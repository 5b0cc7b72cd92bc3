"""A second configuration sees what the live one sees, and names only what it would decide otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from engine.api.config import CrashLoopBackOffConfig, KubeletConfiguration
from engine.api.configuration_changes import configuration_changes
from engine.api.duration import Duration
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.interface_files import FileRules
from engine.shadow.kinds.cgroups import CgroupRules
from engine.shadow.kinds.observation import FileSystem, MeasuredNode, MeasuredPod, Observation
from engine.shadow.second import NextChange, NextNode, SecondConfiguration
from tests.shadow.observations import node, observed, pod, ran, record, requesting

NODE = {"cpu": 2000, "memory": 1 << 30, "pid": 1000}


def rules(config: KubeletConfiguration, version: int = 2) -> CgroupRules:
    settings = CgroupSettings.resolve(config, NODE, cgroup_v2=version == 2)
    return CgroupRules(settings, FileRules(version, controllers=frozenset(["cpu", "memory", "pids"])))


def changes(
    seen: Observation,
    after: KubeletConfiguration,
    *,
    following: Any = None,
    by: SecondConfiguration | None = None,
    version: int = 2,
) -> dict[tuple[str, str], NextChange]:
    """Return the changes that one observation finds, by decision and subject."""
    by = by or SecondConfiguration()
    next_node = NextNode(after, rules(after, version), following or seen.node)
    found = by.compare(seen, rules(seen.config, version), next_node)
    return {(change.decision, change.subject): change for change in found}


def short(available: int, **memory: int) -> MeasuredNode:
    """Return statistics of a node with `available` bytes left, and the bytes that pods use."""
    pods = {f"uid-{name}": MeasuredPod(memory=amount) for name, amount in memory.items()}
    return MeasuredNode(memory_available=available, memory_working_set=1000 - available, pods=pods)


def config(available: str = "100", **more: Any) -> KubeletConfiguration:
    return KubeletConfiguration(eviction_hard={"memory.available": available}, **more)


def test_the_same_configuration_changes_nothing() -> None:
    one = pod("p", requesting(cpu="100m", memory="10Mi"))
    seen = observed([one], [record(one, ran(0))], config=config(), use=short(50, p=500))
    assert changes(seen, config()) == {}


def test_a_lower_allocatable_refuses_the_last_pods() -> None:
    pods = [pod(f"p{n}", requesting(cpu="900m"), order=n) for n in range(2)]
    found = changes(observed(pods), KubeletConfiguration(), following=node(cpu="1"))
    (change,) = [one for key, one in found.items() if key[0] == "refuse"]
    assert (change.subject, change.now, change.next) == ("default/p1", "admitted", "OutOfcpu")


def test_a_critical_pod_preempts_where_there_is_less() -> None:
    critical = {**requesting(cpu="900m"), "priority": 2_000_000_000}
    pods = [pod("small", requesting(cpu="900m"), order=1), pod("system", critical, order=2)]
    found = changes(observed(pods), KubeletConfiguration(), following=node(cpu="1"))
    assert found["preempt", "default/small"].why == "for the critical pod default/system"


def test_a_higher_threshold_evicts_pods_until_enough_is_free() -> None:
    by = SecondConfiguration()
    pods = [pod(name, requesting(memory="10")) for name in ("little", "much", "some")]
    use = short(150, little=5, much=100, some=60)
    evicted = []
    for at in (1000.0, 1010.0, 1020.0, 1030.0):
        seen = observed(pods, config=config("100"), use=use, at=at)
        found = changes(seen, config("300"), by=by)
        evicted += [subject for decision, subject in found if decision == "evict"]
    # 150 available and 100 and 60 freed are 310, which is above the threshold.
    assert evicted == ["default/much", "default/some"]
    assert by.counts["evict"] == 2


def test_a_pod_that_the_live_one_evicts_is_no_change() -> None:
    pods = [pod("much", requesting(memory="10"))]
    assert changes(observed(pods, config=config(), use=short(50, much=100)), config()) == {}


def test_pressure_is_a_change_of_its_own() -> None:
    found = changes(observed([], config=config("100"), use=short(150)), config("300"))
    change = found["pressure", "node"]
    assert (change.now, change.next) == ("none", "MemoryPressure")
    assert change.why == "memory.available below 300"


def test_values_that_throttle_or_limit_are_named_so() -> None:
    limited = {
        "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1", "memory": "10Mi"}}}]
    }
    one = pod("p", limited)
    seen = observed([one], [record(one, ran(0))], config=KubeletConfiguration(cpu_cfs_quota=False))
    found = changes(seen, KubeletConfiguration())
    assert found["throttle", "default/p"].next == "cpu.max=100000 100000"
    pids = changes(seen, KubeletConfiguration(cpu_cfs_quota=False, pod_pids_limit=9))
    assert pids["resize", "default/p"].next == "pids.max=9"


@pytest.mark.parametrize("version", [1, 2])
def test_a_shorter_period_of_the_same_quota_does_not_throttle(version: int) -> None:
    limited = {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}}]}
    one = pod("p", limited)
    seen = observed([one], [record(one, ran(0))])
    found = changes(seen, KubeletConfiguration(cpu_cfs_quota_period=Duration(0.01)), version=version)
    assert found["resize", "default/p"].next.split()[0] in ("cpu.max=10000", "cpu.cfs_period_us=10000")
    without = changes(
        observed([one], [record(one, ran(0))], config=KubeletConfiguration(cpu_cfs_quota=False)),
        KubeletConfiguration(), version=version,
    )  # fmt: skip
    assert ("throttle", "default/p") in without


def test_images_would_be_collected() -> None:
    use = MeasuredNode(imagefs=FileSystem(capacity=1000, available=200))
    after = KubeletConfiguration(image_gc_high_threshold_percent=75, image_gc_low_threshold_percent=70)
    found = changes(observed([], use=use), after)
    assert found["collect", "images"].next == "100 bytes"


def test_a_shorter_longest_delay_restarts_earlier() -> None:
    text = "back-off 5m0s restarting failed container=c pod=p"
    status = {
        "name": "c", "ready": False, "restartCount": 6, "image": "i", "imageID": "",
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": text}},
    }  # fmt: skip
    one = pod("p", containerStatuses=[status])
    after = KubeletConfiguration(
        crash_loop_back_off=CrashLoopBackOffConfig(max_container_restart_period=Duration(30))
    )
    found = changes(observed([one], [record(one, ran(6, code=1))]), after)
    assert (found["back-off", "default/p/c"].now, found["back-off", "default/p/c"].next) == ("300 s", "30 s")


def test_fields_that_restart_pods_or_stop_the_kubelet() -> None:
    after = KubeletConfiguration(cgroup_root="/mine", cpu_manager_policy="static", max_pods=7)
    effects = {c.field: c.effect for c in configuration_changes(KubeletConfiguration(), after)}
    assert effects == {"cgroupRoot": "restarts", "cpuManagerPolicy": "refuses to start", "maxPods": "changes"}
    found = changes(observed([]), after)
    assert ("restart", "every pod (cgroupRoot)") in found
    assert ("start", "kubelet (cpuManagerPolicy)") in found


@pytest.mark.parametrize("root", ["", "/"])
def test_the_root_cgroup_has_two_spellings(root: str) -> None:
    assert configuration_changes(KubeletConfiguration(), KubeletConfiguration(cgroup_root=root)) == []


def test_changes_are_bounded() -> None:
    by = SecondConfiguration()
    for number in range(300):
        seen = observed([pod(f"p{number}-{n}", requesting(cpu="1m")) for n in range(8)])
        changes(seen, KubeletConfiguration(), following=node(cpu="0"), by=by)
    assert len(by.changes) == by.changes.maxlen
