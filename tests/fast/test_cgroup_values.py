"""The bulk kernel and its twin against the one-pod functions, and against each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine._fast import _cgroup_values_c, _cgroup_values_py, cgroup_values
from engine._fast._select import PURE
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import BEST_EFFORT, BURSTABLE, GUARANTEED
from engine.cgroups.formulas import bulk
from engine.cgroups.formulas.bulk import BulkCgroups, ContainerColumns
from engine.cgroups.formulas.containers import ContainerRules, container_resources
from engine.cgroups.formulas.conversion import shares_to_weight
from engine.cgroups.formulas.levels import Contribution, LevelRules, LevelSums
from engine.cgroups.formulas.values import PodRules, pod_values
from engine.tables.pods import PodTable
from tests.cgroups.cgroup_scenes import as_pod

GI = 1 << 30
CPU = st.sampled_from(["0", "1m", "20m", "250m", "999m", "1", "1500m", "64", "300"])
MEMORY = st.sampled_from(["0", "1", "4095", "10Mi", "64Mi", "1G", "3Gi", "40Gi"])


def amounts(draw, names):
    return {name: draw(values) for name, values in names.items() if draw(st.booleans())}


@st.composite
def pods(draw):
    def container(name):
        names = {"cpu": CPU, "memory": MEMORY}
        resources = {"limits": amounts(draw, names), "requests": amounts(draw, names)}
        if draw(st.booleans()):
            resources["requests"] = dict(resources["limits"])
        return {"name": name, "resources": resources}

    inits = [container(f"i{n}") for n in range(draw(st.integers(0, 2)))]
    for init in inits:
        if draw(st.booleans()):
            init["restartPolicy"] = "Always"
    spec = {
        "containers": [container(f"c{n}") for n in range(draw(st.integers(1, 3)))],
        "initContainers": inits,
    }
    if draw(st.integers(0, 5)) == 0:
        spec["priorityClassName"] = "system-node-critical"
        spec["priority"] = 2_000_001_000
    if draw(st.integers(0, 3)) == 0:
        spec["overhead"] = amounts(draw, {"cpu": CPU, "memory": MEMORY})
    if draw(st.integers(0, 4)) == 0:
        spec["resources"] = {
            "requests": {"cpu": "400", "memory": "200Gi"},
            "limits": {"cpu": "400", "memory": "200Gi"},
        }
    return spec


def numbered(specs: list[dict]) -> list[Pod]:
    return [
        as_pod({"metadata": {"name": f"p{n}", "uid": f"u{n}"}, "spec": spec}) for n, spec in enumerate(specs)
    ]


@pytest.fixture(params=[_cgroup_values_c, _cgroup_values_py], ids=["compiled", "twin"])
def kernel(request, monkeypatch):
    monkeypatch.setattr(bulk, "kernel", request.param)
    return request.param


def test_the_kernel_in_use_is_the_one_asked_for():
    expected = _cgroup_values_py if PURE else _cgroup_values_c
    assert cgroup_values.pod_values is expected.pod_values


@settings(max_examples=40, deadline=None)
@given(
    specs=st.lists(pods(), max_size=8),
    memory_qos=st.booleans(),
    enforce=st.booleans(),
    custom=st.booleans(),
    formula=st.sampled_from(["linear", "logarithmic"]),
    percent=st.sampled_from([None, 0, 33, 100]),
    module=st.sampled_from([_cgroup_values_c, _cgroup_values_py]),
)
def test_bulk_values_are_the_single_ones(specs, memory_qos, enforce, custom, formula, percent, module):
    listed = numbered(specs)
    pod_rules = PodRules(
        enforce_cpu_limits=enforce, cpu_period_us=20_000, custom_cpu_period=custom, memory_qos=memory_qos
    )
    container_rules = ContainerRules(
        memory_capacity=100 * GI,
        allocatable_memory=96 * GI,
        enforce_cpu_limits=enforce,
        cpu_period_us=20_000,
        custom_cpu_period=custom,
        memory_qos=memory_qos,
        throttling_factor=0.8,
    )
    level_rules = LevelRules(96 * GI, percent, memory_qos)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk, "kernel", module)
        table = PodTable.from_pods(listed)
        got = BulkCgroups(pod_rules, container_rules, level_rules, formula).values(
            table.columns, len(listed), ContainerColumns.of(listed), [100 * GI], [96 * GI]
        )
    at = 0
    for row, pod in enumerate(listed):
        check_pod(got.pods[:, row], pod_values(pod, pod_rules), formula)
        for container in pod.all_containers:
            check_container(
                got.containers[:, at], container_resources(pod, container, container_rules), formula
            )
            at += 1
    check_levels(got.levels[:, 0], listed, level_rules, formula)


def check_pod(got, one, formula):
    none = cgroup_values.NONE
    quota = cgroup_values.UNLIMITED if one.cpu_quota == -1 else one.cpu_quota
    assert list(got) == [
        one.cpu_shares,
        shares_to_weight(one.cpu_shares, formula),
        none if quota is None else quota,
        none if one.memory is None else one.memory,
        int(one.unified.get("memory.min", 0)),
    ]


def check_container(got, one, formula):
    assert list(got) == [
        one.cpu_shares,
        shares_to_weight(one.cpu_shares, formula),
        one.cpu_quota,
        one.memory_limit_in_bytes,
        one.oom_score_adj,
        int(one.unified.get("memory.min", 0)),
        int(one.unified.get("memory.high", 0)),
    ]


def check_levels(got, listed, rules, formula):
    sums = LevelSums()
    for pod in listed:
        sums.put(pod.uid, Contribution.of(pod))
    one = sums.values(rules)
    shares = one[BURSTABLE].cpu_shares
    none = cgroup_values.NONE
    assert list(got) == [
        shares,
        shares_to_weight(shares, formula),
        none if one[BURSTABLE].memory is None else one[BURSTABLE].memory,
        none if one[BEST_EFFORT].memory is None else one[BEST_EFFORT].memory,
        int(one[GUARANTEED].unified.get("memory.min", 0)),
        int(one[BURSTABLE].unified.get("memory.min", 0)),
        len(listed),
    ]


def test_nodes_are_kept_apart_and_free_rows_are_zero(kernel):
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}
    table = PodTable()
    listed = numbered([spec] * 5)
    for number, pod in enumerate(listed):
        table.add(pod, node=number % 2)
    table.remove("u1")
    rules = LevelRules(8 * GI, 100)
    containers = ContainerColumns.of(listed)
    got = BulkCgroups(PodRules(), ContainerRules(8 * GI), rules).values(
        table.columns, table.end, containers, [8 * GI, 4 * GI], [8 * GI, 4 * GI]
    )
    assert got.levels[6].tolist() == [3, 1]
    assert got.levels[0].tolist() == [3072, 1024]
    assert got.levels[3].tolist() == [5 * GI, 3 * GI]
    assert not got.pods[:, 1].any()
    assert not got.containers[:, 1].any()
    assert got.containers[4].tolist() == [875, 0, 875, 750, 875]


def test_scores_round_as_the_integers_do(kernel):
    """Where a quotient in doubles is a hair off, and at the ends of the range."""
    rng = np.random.default_rng(7)
    capacity = [3, 7, 1000, 4096, 8 * GI, 2**53 - 1]
    requests = [0, 1, 2, 999, 1000, 1001, 8 * GI - 1, 8 * GI, 2**53, *rng.integers(0, 2**53, 200)]
    requests += [c * k // 1000 + d for c in capacity for k in (1, 3, 500, 999) for d in (-1, 0, 1) if c * k]
    requests = [max(int(request), 0) for request in requests]
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    table = PodTable.from_pods(numbered([spec] * len(requests)))
    containers = ContainerColumns.of(numbered([spec] * len(requests)))
    containers = replace(containers, oom_request=np.array(requests, np.int64))
    for size in capacity:
        got = BulkCgroups(PodRules(), ContainerRules(size), LevelRules()).values(
            table.columns, len(requests), containers, [size], [size]
        )
        expected = [min(max(1000 - 1000 * request // size, 3), 999) for request in requests]
        assert got.containers[4].tolist() == expected


def test_amounts_that_64_bits_cannot_hold_are_refused(kernel):
    spec = {"containers": [{"name": "c", "resources": {"limits": {"cpu": "8796093023"}}}]}
    listed = numbered([spec])
    with pytest.raises(InvalidInput, match="cpu: an amount is beyond"):
        BulkCgroups(PodRules(), ContainerRules(GI), LevelRules()).values(
            PodTable.from_pods(listed).columns, 1, ContainerColumns.of(listed), [GI], [GI]
        )
