"""In-place resize: what counts as one, whether it fits, the order of writes, and a live container."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from cgroup_scenes import (
    as_pod,
    best_effort,
    burstable,
    guaranteed,
    managed,
)

from engine.api.config import (
    EXCLUSIVE_CPUS_GATE,
    EXCLUSIVE_MEMORY_GATE,
    KubeletConfiguration,
)
from engine.api.errors import Refused
from engine.api.pod import ContainerResizePolicy, Pod
from engine.api.quantity import Quantity
from engine.cgroups.formulas.containers import ContainerResources, ContainerRules, may_swap, status_resources
from engine.cgroups.formulas.values import PodRules
from engine.cgroups.resize import (
    ContainerStep,
    decide_resize,
    in_progress,
    resize_of,
    resize_steps,
)

GI = 1 << 30
RULES = ContainerRules(8 * GI, 8 * GI)


def document(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "uid": "p", "labels": {"app": "x"}},
        "spec": {"containers": [{"name": f"c{n}", **c} for n, c in enumerate(containers)], **spec},
    }


def limited(cpu: str, memory: str) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": memory}
    return {"resources": {"requests": dict(amounts), "limits": dict(amounts)}}


def ranged(cpu: tuple[str, str], memory: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {
        "resources": {
            "requests": {"cpu": cpu[0], "memory": memory[0]},
            "limits": {"cpu": cpu[1], "memory": memory[1]},
        },
        **more,
    }


def both(old: dict[str, Any], new: dict[str, Any]) -> tuple[Pod, Pod]:
    return as_pod(old), as_pod(new)


BASE = document(ranged(("500m", "1"), ("64Mi", "128Mi")), ranged(("100m", "200m"), ("32Mi", "64Mi")))


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return a copy of BASE with one field set; `path` has dots between names, and numbers for list
    positions."""
    new = copy.deepcopy(BASE)
    *parents, last = path.split(".")
    at: Any = new
    for name in parents:
        at = at[int(name)] if name.isdigit() else at.setdefault(name, {})
    at[last] = value
    return new


@pytest.mark.parametrize(
    ("path", "value", "containers"),
    [
        ("spec.containers.0.resources.requests.cpu", "700m", {"c0": ("cpu",)}),
        ("spec.containers.0.resources.limits.memory", "256Mi", {"c0": ("memory",)}),
        (
            "spec.containers.1.resources",
            ranged(("50m", "1"), ("16Mi", "1Gi"))["resources"],
            {"c1": ("memory", "cpu")},
        ),
    ],
)
def test_only_cpu_and_memory_amounts_make_a_resize(path, value, containers):
    resize = resize_of(*both(BASE, changed(path, value)))
    assert resize is not None
    assert {change.name: change.resources for change in resize.containers} == containers


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.containers.0.image", "other"),
        ("metadata.labels", {"app": "y"}),
        ("spec.containers.0.resources.requests.ephemeral-storage", "1Gi"),
        ("spec.containers.0.resources.limits", {"cpu": "1"}),
        ("spec.containers.0.resources", {}),
        ("spec.restartPolicy", "Never"),
        ("spec.initContainers", [{"name": "i"}]),
    ],
)
def test_anything_else_replaces_the_pod(path, value):
    assert resize_of(*both(BASE, changed(path, value))) is None


def test_another_class_replaces_the_pod():
    old, new = document(limited("1", "1Gi")), document(ranged(("500m", "1"), ("1Gi", "1Gi")))
    assert resize_of(*both(old, new)) is None


def test_the_same_pod_is_no_resize():
    assert resize_of(*both(BASE, copy.deepcopy(BASE))) is None


@pytest.mark.parametrize("restart", [{}, {"restartPolicy": "Always"}], ids=["init", "sidecar"])
def test_init_containers_resize_as_others_do(restart):
    init = {"name": "i", **limited("1", "1Gi"), **restart}
    old = document(limited("1", "1Gi"), initContainers=[init])
    new = copy.deepcopy(old)
    new["spec"]["initContainers"][0] |= limited("2", "1Gi")
    resize = resize_of(*both(old, new))
    assert resize is not None
    assert [(change.name, change.resources) for change in resize.containers] == [("i", ("cpu",))]


def test_a_restart_is_asked_for_by_policy():
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    old = document(ranged(("1", "2"), ("1Gi", "2Gi"), resizePolicy=policy))
    for amounts, restarts in ((("1", "3"), False), (("1", "2"), True)):
        memory = ("1Gi", "2Gi") if not restarts else ("1Gi", "3Gi")
        resize = resize_of(*both(old, document(ranged(amounts, memory, resizePolicy=policy))))
        assert resize is not None
        assert [change.restart for change in resize.containers] == [restarts]


def decide(old: Pod, new: Pod, used: str = "0", rules: ContainerRules = RULES, **config: Any):
    return decide_resize(
        old,
        new,
        allocatable={"cpu": Quantity.parse("4"), "memory": Quantity.parse("8Gi")},
        others={"cpu": Quantity.parse(used), "memory": Quantity.parse("0")},
        config=KubeletConfiguration(**config),
        may_swap=lambda pod, container: may_swap(pod, container, rules),
    )


def test_a_resize_that_fits_proceeds():
    decision = decide(burstable("b", "1"), burstable("b", "2"), used="2")
    assert decision.verdict == "Proceed"
    assert decision.condition() is None


def test_one_that_does_not_fit_now_is_deferred():
    decision = decide(burstable("b", "1"), burstable("b", "2"), used="3")
    condition = decision.condition(generation=7)
    assert condition is not None
    assert (condition.type, condition.reason) == ("PodResizePending", "Deferred")
    assert condition.observed_generation == 7
    assert condition.message == (
        "Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000"
    )


def test_one_that_never_fits_is_infeasible():
    condition = decide(burstable("b", "1"), burstable("b", "5")).condition()
    assert condition is not None
    assert condition.reason == "Infeasible"
    assert condition.message == "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000"


def test_shrinking_fits_on_a_node_that_is_too_full():
    assert decide(burstable("b", "3"), burstable("b", "2"), used="3").verdict == "Proceed"


def test_static_policies_are_infeasible():
    old, new = guaranteed("g", "1"), guaranteed("g", "2")
    assert "CPU Manager" in decide(old, new, cpu_manager_policy="static").message
    assert decide(old, new, memory_manager_policy="Static").verdict == "Proceed"
    more = guaranteed("g", "1", memory="2Gi")
    assert "Memory Manager" in decide(old, more, memory_manager_policy="Static").message
    assert decide(old, more, cpu_manager_policy="static").verdict == "Proceed"
    gates = {EXCLUSIVE_CPUS_GATE: True, EXCLUSIVE_MEMORY_GATE: True}
    assert decide(old, new, cpu_manager_policy="static", feature_gates=gates).verdict == "Proceed"
    assert decide(old, more, memory_manager_policy="Static", feature_gates=gates).verdict == "Proceed"
    assert decide(burstable("b", "1"), burstable("b", "2"), cpu_manager_policy="static").verdict == "Proceed"


def test_a_container_that_may_swap_gets_another_memory_request_only_by_a_restart():
    rules = ContainerRules(1 << 33, cgroup_v2=True, swap_controller=True, swap_behavior="LimitedSwap")
    old, new = burstable("b"), burstable("b", memory="2Gi")
    decision = decide(old, new, rules=rules)
    assert decision.verdict == "Infeasible"
    assert decision.message == "In-place resize of containers with swap is not supported."
    for container in (*old.spec.containers, *new.spec.containers):
        container.resize_policy = [
            ContainerResizePolicy(resource_name="memory", restart_policy="RestartContainer")
        ]
    assert decide(old, new, rules=rules).verdict == "Proceed"
    # A container with all of its memory guaranteed does not swap.
    assert decide(guaranteed("g", "1"), guaranteed("g", "1", memory="2Gi"), rules=rules).verdict == "Proceed"


def steps(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        ("container", step.container, step.resource)
        if isinstance(step, ContainerStep)
        else ("pod", step.resource, step.part)
        for step in resize_steps(*both(old, new), PodRules(), RULES)
    ]


def test_growing_writes_the_parent_first():
    assert steps(document(limited("1", "1Gi")), document(limited("2", "2Gi"))) == [
        ("pod", "memory", "limit"),
        ("container", "c0", "memory"),
        ("pod", "cpu", "limit"),
        ("pod", "cpu", "request"),
        ("container", "c0", "cpu"),
    ]


def test_shrinking_writes_the_children_first():
    assert steps(document(limited("2", "2Gi")), document(limited("1", "1Gi"))) == [
        ("container", "c0", "memory"),
        ("pod", "memory", "limit"),
        ("container", "c0", "cpu"),
        ("pod", "cpu", "request"),
        ("pod", "cpu", "limit"),
    ]


def test_a_shift_between_containers_shrinks_before_it_grows():
    old = document(limited("1", "1Gi"), limited("2", "1Gi"))
    new = document(limited("2", "1Gi"), limited("1", "1Gi"))
    assert steps(old, new) == [("container", "c1", "cpu"), ("container", "c0", "cpu")]


def test_memory_changes_while_cpu_still_has_its_old_value():
    old, new = both(document(limited("1", "1Gi")), document(limited("2", "2Gi")))
    updates = [s for s in resize_steps(old, new, PodRules(), RULES) if isinstance(s, ContainerStep)]
    assert [(u.resources.cpu_quota, u.resources.memory_limit_in_bytes) for u in updates] == [
        (100_000, 2 * GI),
        (200_000, 2 * GI),
    ]


def test_a_new_limit_of_memory_counts_as_a_smaller_one():
    requests = {"memory": "64Mi"}
    limited = {"requests": requests, "limits": {"memory": "1Gi"}}
    old, new = both(document({"resources": {"requests": requests}}), document({"resources": limited}))
    (update,) = (s for s in resize_steps(old, new, PodRules(), RULES) if isinstance(s, ContainerStep))
    assert update.shrinks


def test_a_pod_level_limit_reaches_containers_without_one():
    pod_level = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    old = document({}, limited("100m", "64Mi"), resources=pod_level)
    new = copy.deepcopy(old)
    new["spec"]["resources"]["limits"] = {"cpu": "3", "memory": "2Gi"}
    assert steps(old, new) == [("pod", "cpu", "limit"), ("container", "c0", "cpu")]


@pytest.mark.parametrize(
    ("policies", "restarts"),
    [
        ({"cpu": "RestartContainer"}, True),
        ({"memory": "RestartContainer"}, False),
        ({"cpu": "NotRequired"}, False),
        ({}, False),
    ],
)
def test_a_pod_level_limit_restarts_containers_without_limits_by_policy(policies, restarts):
    pod_level = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    policy = [{"resourceName": name, "restartPolicy": value} for name, value in policies.items()]
    bare, own = {"resizePolicy": policy}, {"resizePolicy": policy, **limited("100m", "64Mi")}
    old = document(bare, own, resources=pod_level)
    new = copy.deepcopy(old)
    new["spec"]["resources"]["limits"]["cpu"] = "3"
    resize = resize_of(*both(old, new))
    assert resize is not None
    assert [(c.name, c.resources, c.restart) for c in resize.containers] == [("c0", ("cpu",), restarts)]
    assert resize.pod_level


def test_a_smaller_pod_level_limit_reaches_containers_before_the_pod():
    pod_level = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "3", "memory": "2Gi"}}
    old = document(limited("100m", "64Mi"), {}, resources=pod_level)
    new = copy.deepcopy(old)
    new["spec"]["resources"]["limits"]["cpu"] = "2"
    assert steps(old, new) == [("container", "c1", "cpu"), ("pod", "cpu", "limit")]


def test_status_spells_amounts_as_the_kubelet_converts_them_from_the_runtime():
    container = as_pod(document(ranged(("333m", "1500m"), ("64M", "100M")))).spec.containers[0]
    amounts = status_resources(
        container,
        ContainerResources(
            cpu_shares=340, cpu_quota=150_000, cpu_period=100_000, memory_limit_in_bytes=100_000_000
        ),
    )
    assert {name: str(amount) for name, amount in (amounts.requests or {}).items()} == {
        "cpu": "333m",
        "memory": "64M",
    }
    assert {name: str(amount) for name, amount in (amounts.limits or {}).items()} == {
        "cpu": "1500m",
        "memory": "100000000",
    }
    other = status_resources(
        container,
        ContainerResources(
            cpu_shares=1024, cpu_quota=50_000, cpu_period=100_000, memory_limit_in_bytes=1 << 26
        ),
    )
    assert {name: str(amount) for name, amount in (other.limits or {}).items()} == {
        "cpu": "500m",
        "memory": "64Mi",
    }
    assert str((other.requests or {})["cpu"]) == "1"
    small = as_pod(document(ranged(("1m", "5m"), ("1Mi", "1Mi")))).spec.containers[0]
    least = ContainerResources(
        cpu_shares=2, cpu_quota=1000, cpu_period=100_000, memory_limit_in_bytes=1 << 20
    )
    assert str((status_resources(small, least).requests or {})["cpu"]) == "1m"
    assert str((status_resources(small, least).limits or {})["cpu"]) == "5m"


def test_status_shares_the_amounts_of_a_spec_that_are_written_alike() -> None:
    container = as_pod(document(ranged(("100m", "500m"), ("64Mi", "128Mi")))).spec.containers[0]
    actual = ContainerResources(
        cpu_shares=102, cpu_quota=50_000, cpu_period=100_000, memory_limit_in_bytes=128 << 20
    )
    amounts = status_resources(container, actual)
    assert amounts.requests is container.requests
    assert amounts.limits is container.limits


def test_status_shows_the_limits_of_the_pod_where_the_container_has_one_of_its_own() -> None:
    def shown(limits: dict[str, str], quota: int, memory: int) -> dict[str, str]:
        container = as_pod(document({"resources": {"limits": limits}})).spec.containers[0]
        actual = ContainerResources(
            cpu_shares=2, cpu_quota=quota, cpu_period=100_000, memory_limit_in_bytes=memory
        )
        amounts = status_resources(container, actual)
        return {name: str(amount) for name, amount in (amounts.limits or {}).items()}

    assert shown({"memory": "64Mi"}, 20_000, 64 << 20) == {"cpu": "200m", "memory": "64Mi"}
    assert shown({"cpu": "100m"}, 10_000, 128 << 20) == {"cpu": "100m", "memory": "128Mi"}
    assert shown({"memory": "64Mi"}, 1000, 64 << 20) == {"memory": "64Mi"}, "the smallest quota says nothing"
    assert shown({"memory": "64Mi"}, -1, 64 << 20) == {"memory": "64Mi"}
    assert shown({}, 20_000, 128 << 20) == {}


def test_progress_conditions():
    assert (in_progress().type, in_progress().reason) == ("PodResizeInProgress", "")
    assert (in_progress("no").reason, in_progress("no").message) == ("Error", "no")


@pytest.mark.root
async def test_the_level_follows_a_resize(private_root):
    with managed(private_root) as manager:
        manager.create_pod(best_effort("e"))
        manager.create_pod(burstable("b", "1"))

        async def update(container: str, resources: ContainerResources) -> None:
            """Change nothing: only the level matters here."""

        await manager.resize_pod(burstable("b", "1"), burstable("b", "2500m"), update)
        level = (*manager.settings.root, "burstable")
        share = "cpu.shares" if manager.mounts.version == 1 else "cpu.weight"
        assert manager.tree.read(level, share) == manager.tree.group(level).wanted[share]
        assert manager.levels.values()["Burstable"].cpu_shares == 2560


@pytest.mark.root
async def test_a_refused_resize_changes_nothing(private_root):
    old = document(ranged(("100m", "1"), ("64Mi", "128Mi")), ranged(("100m", "1"), ("64Mi", "128Mi")))
    new = document(ranged(("100m", "2"), ("32Mi", "64Mi")), ranged(("100m", "2"), ("32Mi", "64Mi")))
    updated = []

    async def update(container: str, resources: ContainerResources) -> None:
        updated.append(container)

    with managed(private_root) as manager:
        before, after = both(old, new)
        manager.create_pod(before)
        with pytest.raises(Refused, match="container c1 memory limit"):
            await manager.resize_pod(before, after, update, {"c0": 1 << 20, "c1": 1 << 30})
        with pytest.raises(Refused, match="missing container c1 memory usage"):
            await manager.resize_pod(before, after, update, {"c0": 1 << 20, "c1": None})
        assert updated == []
        await manager.resize_pod(before, after, update, {"c0": 1 << 20, "c1": 1 << 20})
        assert updated == ["c0", "c1", "c0", "c1"]
