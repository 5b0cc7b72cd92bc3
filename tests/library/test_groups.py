"""`engine.cgroup_tree`: the groups of a node over plain documents."""

from __future__ import annotations

from typing import Any

import pytest

import engine
from engine import InvalidInput

LIMITED = {"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "64Mi"}}
CAPACITY = {"cpu": "8", "memory": "32Gi"}


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    containers = [{"name": "c", "resources": LIMITED}]
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": containers}}


def test_every_group_is_there_with_its_files() -> None:
    groups = {group.path: group for group in engine.cgroup_tree([pod("web", uid="u1")], CAPACITY)}
    top = ["/kubepods", "/kubepods/burstable", "/kubepods/besteffort"]
    assert list(groups) == [*top, "/kubepods/burstable/podu1", "/kubepods/burstable/podu1/c"]
    assert groups["/kubepods/burstable/podu1"].files["cpu.max"] == "100000 100000"
    assert groups["/kubepods/burstable/podu1/c"].oom_score_adj is not None


def test_version_formula_and_configuration_count() -> None:
    (root, *_) = engine.cgroup_tree([], CAPACITY, version=1)
    assert root.files["cpu.shares"] == "8192"
    weights = [
        engine.cgroup_tree([], {"cpu": "1", "memory": "1Gi"}, cpu_weight=formula)[0].files["cpu.weight"]
        for formula in ("linear", "logarithmic")
    ]
    assert weights == ["39", "100"]
    systemd = {"kind": "KubeletConfiguration", "cgroupDriver": "systemd", "systemReserved": {"memory": "2Gi"}}
    (root, *_) = engine.cgroup_tree([], CAPACITY, systemd)
    assert (root.path, root.files["memory.max"]) == ("/kubepods.slice", str(30 << 30))


def test_pods_of_one_name_in_two_namespaces_have_groups_of_their_own() -> None:
    groups = engine.cgroup_tree([pod("web"), pod("web", namespace="shop")], CAPACITY)
    paths = [group.path for group in groups if group.kind == "pod"]
    assert paths == ["/kubepods/burstable/poddefault-web", "/kubepods/burstable/podshop-web"]


def test_a_wrong_capacity_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="capacity of memory: quantity '1Qq' is not valid"):
        engine.cgroup_tree([], {"memory": "1Qq"})
