"""The kubelet's recorded answers, asked of a snapshot: what is read from JSON decides as it should.

All cases of a kind are one cluster, a node each.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from engine._fast.preemption.preemption import victims_by_node
from engine.api.pod import Pod
from engine.api.qos import is_critical
from engine.api.struct import decode_hook
from engine.plan import FaultLog, Snapshot
from engine.plan.placement.fit import fit, node_use
from engine.plan.reading.reader import SnapshotReader
from engine.plan.reading.sources import DocumentSource
from engine.tables.eviction import eviction_order
from tests.conformance.changed import ports_changed, sums_changed


class _NoDigest:
    def update(self, data: object) -> None: ...

    def hexdigest(self) -> str:
        return ""


def cluster_of(cases: list[dict[str, Any]]) -> tuple[Snapshot, set[int]]:
    """Return the cases as one snapshot, a node each, and the numbers of cases with a refused object."""
    items = []
    names = [f"n{number}" for number in range(len(cases))]
    if len(cases) == 1:
        names = [cases[0]["node"]["metadata"]["name"]]
    for number, case in enumerate(cases):
        given = case.get("node") or {"status": {}}
        meta = {**given.get("metadata", {}), "name": names[number]}
        items.append({**given, "kind": "Node", "metadata": meta})
        for index, pod in enumerate(case["pods"]):
            meta = {**pod["metadata"], "name": f"n{number}-p{index}"}
            items.append(
                {**pod, "kind": "Pod", "metadata": meta, "spec": {**pod["spec"], "nodeName": names[number]}}
            )
    faults = FaultLog()
    reader = SnapshotReader(faults)
    reader.read(DocumentSource("cases", io.BufferedReader(io.BytesIO(json.dumps({"items": items}).encode()))))
    snapshot = reader.snapshot(_NoDigest(), ["cases"])
    assert snapshot.node_names == names
    refused = {int(re.search(r"\bn(\d+)\b", fault.subject)[1]) for fault in faults.kept}  # type: ignore[index]
    return snapshot, refused


def typed(pod: dict[str, Any]) -> Pod:
    return msgspec.convert(pod, Pod, dec_hook=decode_hook)


def unchanged(cases: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [case for case in cases if not sums_changed(map(typed, case["pods"]))]


def test_admission(vectors):
    cases = list(vectors("admission"))
    compared = 0
    for case in cases:
        snapshot, refused = cluster_of([case])
        if refused:
            continue
        compared += 1
        pod = typed(case["pod"])
        if ports_changed([pod, *map(typed, case["pods"])]):
            continue
        found = fit(node_use(snapshot), pod)
        if not case["admit"] and not case["failures"]:
            assert found.other, case
            continue
        amounts = dict(zip(found.resources, found.missing[:, 0].tolist(), strict=True))
        short = {name: amount for name, amount in amounts.items() if amount}
        failures = [f for f in case["failures"] if "resource" in f]
        assert short == {f["resource"]: f["requested"] - (f["capacity"] - f["used"]) for f in failures}, case
        others = {f["predicate"] for f in case["failures"] if "predicate" in f}
        assert {f.reason for f in found.other.get(0, ())} == others, case
    assert compared > 0.9 * len(cases)


def recorded_preemption(case: dict[str, Any]) -> dict[str, Any]:
    """Convert a case of v1.36 to the form of v1.32."""
    given, found = case["in"], case["out"]
    needs = [{"resource": resource, "quantity": amount} for resource, amount in given["needs"]]
    outcome = {"error": found["error"]} if found["error"] else {"victims": found["victims"] or []}
    return {"preemptor": given["preemptor"], "pods": given["pods"], "requirements": needs, **outcome}


def test_preemption_of_v1_36(answers):
    check_preemption([recorded_preemption(case) for case in answers("preempt")])


def test_preemption(vectors):
    check_preemption(unchanged(vectors("preemption")))


def check_preemption(cases: list[dict[str, Any]]) -> None:
    snapshot, refused = cluster_of(cases)
    columns, offsets = snapshot.tables.columns, snapshot.offsets
    uids = snapshot.pods["uid"].to_pylist()
    compared = 0
    for number, case in enumerate(cases):
        preemptor = typed(case["preemptor"])
        ids = [snapshot.resources.find(requirement["resource"]) for requirement in case["requirements"]]
        if number in refused or any(id is None for id in ids):
            continue
        compared += 1
        _, chosen, left = victims_by_node(
            columns.ranking, columns.qos, columns.flags, columns.priority, offsets[number : number + 2],
            is_critical(preemptor), preemptor.spec.priority, np.array(ids, np.int32),
            np.array([[requirement["quantity"] for requirement in case["requirements"]]], np.int64), 1,
        )  # fmt: skip
        if "victims" in case:
            assert [uids[row] for row in chosen.tolist()] == case["victims"], case
        else:
            assert left.any(), case
    assert compared > 0.9 * len(cases)


def test_admission_of_v1_36(answers):
    compared = 0
    for case in answers("admission"):
        given, wanted = case["in"], case["out"]
        snapshot, refused = cluster_of([given])
        if refused:
            continue
        compared += 1
        pod = typed(given["pod"])
        found = fit(node_use(snapshot), pod)
        short = any(amount > 0 for amount in found.missing[:, 0].tolist())
        others = bool(found.other.get(0))
        assert (not short and not others) is (wanted["admit"] and not wanted["victims"]), case
    assert compared


def test_eviction_rank(vectors):
    cases = unchanged(case for case in vectors("eviction_rank") if case["kind"] != "disk")
    snapshot, refused = cluster_of(cases)
    uids = snapshot.pods["uid"].to_pylist()
    for number, case in enumerate(cases):
        if number in refused:
            continue
        field = "working_set_bytes" if case["kind"] == "memory" else "process_count"
        rows = np.arange(*snapshot.offsets[number : number + 2], dtype=np.int32)
        stats = [case["stats"].get(uids[row]) for row in rows]
        usage = np.array([(s or {}).get(field) or 0 for s in stats], np.int64)
        known = np.array([s is not None for s in stats], np.uint8)
        ranked = "memory" if case["kind"] == "memory" else "processes"
        order = eviction_order(snapshot.tables.columns, rows, ranked, usage, known)
        assert [uids[row] for row in order.tolist()] == case["order"], case
    assert len(refused) < 0.1 * len(cases)
