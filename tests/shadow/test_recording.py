"""What a shadow sees goes into a record, from which the end of a pod is explained."""

from __future__ import annotations

import re

from engine.record.blocks import RecordRow
from engine.record.why import causes
from engine.shadow.kinds.comparison import Comparison
from engine.shadow.kinds.eviction import EvictionComparer
from engine.shadow.kinds.observation import MeasuredNode, MeasuredPod, Observation
from engine.shadow.observation_rows import RecordedObservation
from engine.shadow.recording import ObservationRecorder
from tests.shadow.observations import FACTS, observed, pod, ran, record, requesting

LOW = "The node was low on resource: memory. "


def test_an_eviction_is_recorded_with_both_reasons() -> None:
    recorder = ObservationRecorder()
    rows(recorder, observed([pod("p", requesting(memory="10"))]))
    compared = Comparison("eviction", "default/p", "default/p", "default/p", "p uses 500 bytes", LOW)
    ended = pod(
        "p", requesting(memory="10"), phase="Failed", reason="Evicted", message=LOW,
        containerStatuses=[
            {"name": "c", "ready": False, "restartCount": 0, "image": "i", "imageID": "", "state": {}}
        ],
    )  # fmt: skip
    (cause,) = causes(rows(recorder, observed([ended]), compared))
    assert (cause.what, cause.why) == ("was evicted", f"Evicted: {LOW}")
    assert cause.inputs["reason"] == "p uses 500 bytes"


def test_a_pod_that_a_kubelet_refuses_when_it_starts_was_refused_not_evicted() -> None:
    recorder = ObservationRecorder()
    rows(recorder, observed([pod("p")]))
    message = "Pod was rejected: The node had condition: [DiskPressure]. "
    status = {"name": "c", "ready": False, "restartCount": 0, "image": "i", "imageID": "", "state": {}}
    refused = pod("p", phase="Failed", reason="Evicted", message=message, containerStatuses=[status])
    (cause,) = causes(rows(recorder, observed([refused])))
    assert (cause.what, cause.why) == ("was refused", f"Evicted: {message}")
    assert [one for one in EvictionComparer().compare(observed([refused])) if one.kind == "eviction"] == []


def test_a_restart_is_recorded_with_the_end_before_it() -> None:
    recorder = ObservationRecorder()
    one = pod("p")
    rows(recorder, observed([one], [record(one, ran(0, code=3))]))
    (cause,) = causes(rows(recorder, observed([one], [record(one, ran(1), ran(0, code=3))])))
    assert (cause.container, cause.what, cause.why) == ("c", "was restarted", "Error with exit code 3")
    assert cause.inputs["restartPolicy"] == "Always"
    assert re.fullmatch(r"[\d-]{10}T[\d:]{8}Z", cause.inputs["finishedAt"])


def test_restarts_before_the_first_observation_are_not_news() -> None:
    one = pod("p")
    found = rows(ObservationRecorder(), observed([one], [record(one, ran(5), ran(4, code=3))]))
    assert list(causes(found)) == []


def test_only_changes_are_recorded_and_amounts_with_every_observation() -> None:
    recorder = ObservationRecorder()
    use = MeasuredNode(memory_available=5, memory_working_set=5, pods={"uid-p": MeasuredPod(memory=7)})
    compared = Comparison("status", "default/p/c", "running", "running")
    first = rows(recorder, observed([pod("p")], use=use), compared, state=True)
    second = rows(recorder, observed([pod("p")], use=use), compared)
    third = rows(recorder, observed([], use=use), compared._replace(kubelets="waiting"))
    observations = ["observation statistics", "observation counters"]
    assert named(first) == ["pod Running", "judged status", *observations, "observation state"]
    assert named(second) == [*observations, "observation changed"]
    assert named(third) == ["pod gone", "judged status", *observations, "observation changed"]
    assert (second[0].values[:3], second[0].values[-3:]) == ((5, 5, -1), (7, -1, -1))
    assert (first[1].pod, third[1].inputs["kubelet"]) == ("default/p", "waiting")


def test_a_decision_about_a_cgroup_is_about_no_pod() -> None:
    compared = Comparison("cgroups", "/kubepods/burstable", "cpu.weight=1", "cpu.weight=1")
    (row,) = (row for row in rows(ObservationRecorder(), observed([]), compared) if row.stream == "judged")
    assert (row.pod, row.text) == ("", "cpu.weight=1")


def rows(
    recorder: ObservationRecorder, seen: Observation, *compared: Comparison, state: bool = False
) -> list[RecordRow]:
    return list(recorder.rows(RecordedObservation(seen, FACTS), compared, 1, state=state))


def named(rows: list[RecordRow]) -> list[str]:
    return [f"{row.stream} {row.name}" for row in rows]
