"""Preemption, and the columns that it reads, against the kubelet's recorded answers, kernel and twin."""

from __future__ import annotations

import pytest

from engine._fast.preemption import _preemption_c, _preemption_py, _requests_c, _requests_py
from engine.admission import NotEnoughToPreempt, preempt
from engine.api.documents import as_written
from engine.api.pod import Pod
from engine.tables import CRITICAL, MIRROR, QOS_NAMES, STATIC, PodTable
from tests.conformance.changed import sums_changed


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(_preemption_c.victims, id="kernel"),
        pytest.param(_preemption_py.victims, id="twin"),
    ],
)
def test_preemption(vectors, kernel, monkeypatch):
    monkeypatch.setattr("engine._fast.preemption.preemption.victims", kernel)
    for case in vectors("preemption"):
        pods = [as_written(pod, Pod, "pod") for pod in case["pods"]]
        if sums_changed(pods):
            continue
        requirements = [(one["resource"], one["quantity"]) for one in case["requirements"]]
        preemptor = as_written(case["preemptor"], Pod, "preemptor")
        if "error" in case:
            with pytest.raises(NotEnoughToPreempt) as failure:
                preempt(pods, preemptor, requirements)
            assert failure.value.message == case["error"], case
        else:
            decision = preempt(pods, preemptor, requirements)
            assert list(decision.victims) == case["victims"], case
            assert sorted(step.uid for step in decision.steps()) == sorted(case["victims"]), case


@pytest.mark.parametrize(
    "filler", [pytest.param(_requests_c.Filler, id="kernel"), pytest.param(_requests_py.Filler, id="twin")]
)
def test_classes_and_sums_in_the_columns(vectors, filler, monkeypatch):
    monkeypatch.setattr("engine.tables.pods.Filler", filler)
    for case in vectors("qos"):
        pod = as_written({**case["pod"], "status": {}}, Pod, "pod")
        pod.metadata.uid = pod.metadata.uid or "uid"
        table = PodTable()
        row = table.add(pod)
        names = table.resources.names
        assert QOS_NAMES[table.columns.qos[row]] == case["qos"], case
        ranking = dict(zip(names, table.columns.ranking[:, row].tolist(), strict=True))
        if not sums_changed([pod]):
            assert {name: amount for name, amount in ranking.items() if amount} == {
                name: amount for name, amount in case["requests"].items() if amount and name != "pods"
            }, case
        requests = dict(zip(names, table.columns.requests[:, row].tolist(), strict=True))
        assert {name: amount for name, amount in requests.items() if amount} == {
            name: amount for name, amount in case["helper_requests"].items() if amount and name != "pods"
        }, case


@pytest.mark.parametrize(
    "filler", [pytest.param(_requests_c.Filler, id="kernel"), pytest.param(_requests_py.Filler, id="twin")]
)
@pytest.mark.parametrize(
    "kernel",
    [pytest.param(_preemption_c.victims, id="kernel"), pytest.param(_preemption_py.victims, id="twin")],
)
def test_critical_and_preemptable_in_the_columns(vectors, filler, kernel, monkeypatch):
    monkeypatch.setattr("engine.tables.pods.Filler", filler)
    monkeypatch.setattr("engine._fast.preemption.preemption.victims", kernel)
    for case in vectors("critical"):
        if "pod" in case:
            pod = as_written(case["pod"], Pod, "pod")
            table = PodTable.from_pods([pod])
            flags = int(table.columns.flags[0])
            assert bool(flags & CRITICAL) is case["critical"], case
            assert bool(flags & STATIC) is case["static"], case
            assert bool(flags & MIRROR) is case["mirror"], case
            continue
        preemptee, preemptor = (as_written(case[who], Pod, "pod") for who in ("preemptee", "preemptor"))
        preemptee.metadata.uid, preemptor.metadata.uid = "preemptee", "preemptor"
        try:
            victims = preempt([preemptee], preemptor, {"pods": 1}).victims
        except NotEnoughToPreempt:
            victims = ()
        assert bool(victims) is case["preemptable"], case
