"""What a shadow sees goes into a record, from which the end of a pod is explained."""

from __future__ import annotations

import re

from engine.record.blocks import RecordRow
from engine.record.why import causes
from engine.shadow.kinds.comparison import Comparison
from engine.shadow.kinds.eviction import EvictionComparer
from engine.shadow.kinds.observation import MeasuredNode, MeasuredPod, Observation
from engine.shadow.look_rows import RecordedLook
from engine.shadow.recording import LookRecorder
from tests.shadow.looks import FACTS, look, pod, ran, record, requesting

LOW = "The node was low on resource: memory. "


def test_an_eviction_is_recorded_with_both_reasons() -> None:
    recorder = LookRecorder()
    rows(recorder, look([pod("p", requesting(memory="10"))]))
    compared = Comparison("eviction", "default/p", "default/p", "default/p", "p uses 500 bytes", LOW)
    ended = pod(
        "p", requesting(memory="10"), phase="Failed", reason="Evicted", message=LOW,
        containerStatuses=[
            {"name": "c", "ready": False, "restartCount": 0, "image": "i", "imageID": "", "state": {}}
        ],
    )  # fmt: skip
    (cause,) = causes(rows(recorder, look([ended]), compared))
    assert (cause.what, cause.why) == ("was evicted", f"Evicted: {LOW}")
    assert cause.inputs["reason"] == "p uses 500 bytes"


def test_a_pod_that_a_kubelet_refuses_when_it_starts_was_refused_not_evicted() -> None:
    recorder = LookRecorder()
    rows(recorder, look([pod("p")]))
    message = "Pod was rejected: The node had condition: [DiskPressure]. "
    status = {"name": "c", "ready": False, "restartCount": 0, "image": "i", "imageID": "", "state": {}}
    refused = pod("p", phase="Failed", reason="Evicted", message=message, containerStatuses=[status])
    (cause,) = causes(rows(recorder, look([refused])))
    assert (cause.what, cause.why) == ("was refused", f"Evicted: {message}")
    assert [one for one in EvictionComparer().compare(look([refused])) if one.kind == "eviction"] == []


def test_a_restart_is_recorded_with_the_end_before_it() -> None:
    recorder = LookRecorder()
    one = pod("p")
    rows(recorder, look([one], [record(one, ran(0, code=3))]))
    (cause,) = causes(rows(recorder, look([one], [record(one, ran(1), ran(0, code=3))])))
    assert (cause.container, cause.what, cause.why) == ("c", "was restarted", "Error with exit code 3")
    assert cause.inputs["restartPolicy"] == "Always"
    assert re.fullmatch(r"[\d-]{10}T[\d:]{8}Z", cause.inputs["finishedAt"])


def test_restarts_before_the_first_look_are_not_news() -> None:
    one = pod("p")
    found = rows(LookRecorder(), look([one], [record(one, ran(5), ran(4, code=3))]))
    assert list(causes(found)) == []


def test_only_changes_are_recorded_and_amounts_with_every_look() -> None:
    recorder = LookRecorder()
    use = MeasuredNode(memory_available=5, memory_working_set=5, pods={"uid-p": MeasuredPod(memory=7)})
    compared = Comparison("status", "default/p/c", "running", "running")
    first = rows(recorder, look([pod("p")], use=use), compared, state=True)
    second = rows(recorder, look([pod("p")], use=use), compared)
    third = rows(recorder, look([], use=use), compared._replace(kubelets="waiting"))
    looks = ["look statistics", "look counters"]
    assert named(first) == ["pod Running", "judged status", *looks, "look state"]
    assert named(second) == [*looks, "look changed"]
    assert named(third) == ["pod gone", "judged status", *looks, "look changed"]
    assert (second[0].values[:3], second[0].values[-3:]) == ((5, 5, -1), (7, -1, -1))
    assert (first[1].pod, third[1].inputs["kubelet"]) == ("default/p", "waiting")


def test_a_decision_about_a_cgroup_is_about_no_pod() -> None:
    compared = Comparison("cgroups", "/kubepods/burstable", "cpu.weight=1", "cpu.weight=1")
    (row,) = (row for row in rows(LookRecorder(), look([]), compared) if row.stream == "judged")
    assert (row.pod, row.text) == ("", "cpu.weight=1")


def rows(
    recorder: LookRecorder, seen: Observation, *compared: Comparison, state: bool = False
) -> list[RecordRow]:
    return list(recorder.rows(RecordedLook(seen, FACTS), compared, 1, state=state))


def named(rows: list[RecordRow]) -> list[str]:
    return [f"{row.stream} {row.name}" for row in rows]
