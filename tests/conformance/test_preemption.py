"""Preemption victims against the kubelet's recorded answers, kernel and twin."""

from __future__ import annotations

import pytest

from engine._fast import _preemption_c, _preemption_py
from engine.admission import NotEnoughToPreempt, preempt
from engine.api.documents import convert
from engine.api.pod import Pod


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(_preemption_c.victims, id="kernel"),
        pytest.param(_preemption_py.victims, id="twin"),
    ],
)
def test_preemption(vectors, kernel, monkeypatch):
    monkeypatch.setattr("engine.admission.preemption.distance_victims", kernel)
    for case in vectors("preemption"):
        pods = [convert(pod, Pod, "pod") for pod in case["pods"]]
        requirements = [(one["resource"], one["quantity"]) for one in case["requirements"]]
        preemptor = convert(case["preemptor"], Pod, "preemptor")
        if "error" in case:
            with pytest.raises(NotEnoughToPreempt) as failure:
                preempt(pods, preemptor, requirements)
            assert failure.value.message == case["error"], case
        else:
            decision = preempt(pods, preemptor, requirements)
            assert list(decision.victims) == case["victims"], case
            assert sorted(step.uid for step in decision.steps()) == sorted(case["victims"]), case
