"""What a shadow sees goes into a record, from which the end of a pod is explained."""

from __future__ import annotations

import re

from engine.record.blocks import RecordRow
from engine.record.why import causes
from engine.shadow.kinds.comparison import Comparison
from engine.shadow.kinds.observation import MeasuredNode, MeasuredPod
from engine.shadow.recording import LookRecorder
from tests.shadow.looks import look, pod, ran, record, requesting

LOW = "The node was low on resource: memory. "


def test_an_eviction_is_recorded_with_both_reasons() -> None:
    recorder = LookRecorder()
    list(recorder.rows(look([pod("p", requesting(memory="10"))]), []))
    compared = Comparison("eviction", "default/p", "default/p", "default/p", "p uses 500 bytes", LOW)
    ended = pod(
        "p", requesting(memory="10"), phase="Failed", reason="Evicted", message=LOW,
        containerStatuses=[
            {"name": "c", "ready": False, "restartCount": 0, "image": "i", "imageID": "", "state": {}}
        ],
    )  # fmt: skip
    (cause,) = causes(recorder.rows(look([ended]), [compared]))
    assert (cause.what, cause.why) == ("was evicted", f"Evicted: {LOW}")
    assert cause.inputs["reason"] == "p uses 500 bytes"


def test_a_restart_is_recorded_with_the_end_before_it() -> None:
    recorder = LookRecorder()
    one = pod("p")
    list(recorder.rows(look([one], [record(one, ran(0, code=3))]), []))
    (cause,) = causes(recorder.rows(look([one], [record(one, ran(1), ran(0, code=3))]), []))
    assert (cause.container, cause.what, cause.why) == ("c", "was restarted", "Error with exit code 3")
    assert cause.inputs["restartPolicy"] == "Always"
    assert re.fullmatch(r"[\d-]{10}T[\d:]{8}Z", cause.inputs["finishedAt"])


def test_restarts_before_the_first_look_are_not_news() -> None:
    one = pod("p")
    rows = LookRecorder().rows(look([one], [record(one, ran(5), ran(4, code=3))]), [])
    assert list(causes(rows)) == []


def test_only_changes_are_recorded_and_use_with_every_look() -> None:
    recorder = LookRecorder()
    use = MeasuredNode(memory_available=5, memory_working_set=5, pods={"uid-p": MeasuredPod(memory=7)})
    first = list(recorder.rows(look([pod("p")], use=use), []))
    second = list(recorder.rows(look([pod("p")], use=use), []))
    assert streams(first) == ["pod", "pressure", "use"]
    assert streams(second) == ["pressure", "use"]
    assert (second[0].text, second[0].values[2:]) == ("memory.available", [5, 10])
    assert (second[1].name, second[1].text) == ("pods memory storage processes", "uid-p")
    assert second[1].values == [7, -1, -1]
    assert [row.name for row in recorder.rows(look([]), [])] == ["gone"]


def streams(rows: list[RecordRow]) -> list[str]:
    return [row.stream for row in rows]
