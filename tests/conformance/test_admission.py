"""Admission against the kubelet's recorded answers."""

from __future__ import annotations

from typing import Any

from engine.admission import AdmittedPods
from engine.admission.failures import Failure, WrongOS
from engine.api.documents import convert
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.resources import is_extended, is_hugepage


def described(failures: list[Failure]) -> list[dict[str, Any]]:
    return [failure.describe() for failure in failures if not isinstance(failure, WrongOS)]


def test_admission(vectors):
    for case in vectors("admission"):
        node = convert(case["node"], Node, "node")
        admitted = AdmittedPods(node, [convert(pod, Pod, "pod") for pod in case["pods"]])
        failures = admitted.check(convert(case["pod"], Pod, "pod"))
        assert (not failures) is case["admit"], case
        assert described(failures) == case["failures"], case
        if "reason" in case:
            assert (failures[0].reason, failures[0].message) == (case["reason"], case["message"]), case
        if case.get("unordered_extended"):
            names = [f["resource"] for f in described(failures) if "resource" in f]
            others = [name for name in names if is_extended(name) or is_hugepage(name)]
            assert others == sorted(others), case
        admitted.validate()
