"""Admission against the kubelet's recorded answers."""

from __future__ import annotations

from typing import Any

import pytest

from engine._fast.preemption import _predicates_c, _predicates_py
from engine.admission import NodeAllocations
from engine.admission.everywhere import shortages_everywhere, used_on_each_node
from engine.admission.failures import Failure, InsufficientResource, WrongOS
from engine.api.documents import as_written
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.resources import is_extended, is_hugepage
from engine.tables import ClusterTables
from tests.conformance.changed import ports_changed


def described(failures: list[Failure]) -> list[dict[str, Any]]:
    return [failure.describe() for failure in failures if not isinstance(failure, WrongOS)]


def test_admission(vectors):
    for case in vectors("admission"):
        node = as_written(case["node"], Node, "node")
        pods, wanted = (
            [as_written(pod, Pod, "pod") for pod in case["pods"]],
            as_written(case["pod"], Pod, "pod"),
        )
        if ports_changed([*pods, wanted]):
            continue
        admitted = NodeAllocations(node, pods)
        failures = admitted.check(wanted)
        assert (not failures) is case["admit"], case
        assert described(failures) == case["failures"], case
        if "reason" in case:
            assert (failures[0].reason, failures[0].message) == (case["reason"], case["message"]), case
        if case.get("unordered_extended"):
            names = [f["resource"] for f in described(failures) if "resource" in f]
            others = [name for name in names if is_extended(name) or is_hugepage(name)]
            assert others == sorted(others), case
        admitted.validate()


@pytest.mark.parametrize(
    "kernel", [pytest.param(_predicates_c, id="kernel"), pytest.param(_predicates_py, id="twin")]
)
def test_shortages_over_columns(vectors, kernel, monkeypatch):
    for name in ("request_sums", "short_on_each_node"):
        monkeypatch.setattr(f"engine.admission.everywhere.{name}", getattr(kernel, name))
    for case in vectors("admission"):
        node, pod = as_written(case["node"], Node, "node"), as_written(case["pod"], Pod, "pod")
        if any(isinstance(failure, WrongOS) for failure in NodeAllocations(node).check(pod)):
            continue
        cluster = ClusterTables.from_objects(
            [(node, [as_written(other, Pod, "pod") for other in case["pods"]])]
        )
        answer = shortages_everywhere(cluster, pod, used_on_each_node(cluster))
        short = [failure for failure in case["failures"] if "resource" in failure]
        missing = zip(answer.resources, answer.missing[:, 0].tolist(), strict=True)
        expected = [(f["resource"], InsufficientResource(**f).missing) for f in short]
        assert [(name, amount) for name, amount in missing if amount] == expected, case
