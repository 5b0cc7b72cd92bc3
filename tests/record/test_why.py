"""`kubengine why` answers from a record, also for a pod that is gone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.api.decisions import Decisions
from engine.api.events import WARNING, EventRecorder
from engine.api.kubengine_config import RecordSection
from engine.cli import _kubengine
from engine.host.tasks import Tasks
from engine.node.decisions.recorder import NodeRecorder
from engine.record.blocks import RecordRow
from engine.record.reader import Record
from engine.record.why import causes, inputs_in_words, is_about
from tests.shadow.looks import pod
from tests.waiting import eventually

LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. "


def row(name: str, *, of: str = "default/p", **fields: object) -> RecordRow:
    return RecordRow(time=1_700_000_000.0, stream="decision", name=name, pod=of, uid=f"uid-{of}", **fields)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("eviction evicted", "was evicted"),
        ("preemption preempted", "was preempted"),
        ("admission refused", "was refused"),
        ("restart restarted", "was restarted"),
    ],
)
def test_what_was_decided_is_said_in_one_sentence(name: str, said: str) -> None:
    (cause,) = causes([row(name, text="because"), row("admission admitted")])
    assert cause.sentence == f"2023-11-14 22:13:20Z: default/p {said}: because"


def test_a_pod_is_named_as_users_name_it() -> None:
    one = row("eviction evicted")
    assert [is_about(name, one) for name in ("p", "default/p", "uid-default/p", "q", "kube-system/p")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_inputs_have_a_line_each() -> None:
    inputs = {"signal": "memory.available", "steps": [{"name": "a", "frees": 5}], "limits": {"x": None}}
    assert list(inputs_in_words(inputs)) == [
        "signal: memory.available",
        "steps 1: name a, frees 5",
        "limits: x none",
    ]


async def test_the_agent_keeps_decisions_and_events(tmp_path: Path) -> None:
    clock = lambda: 1_700_000_000.0  # noqa: E731
    decisions, events = Decisions(clock), EventRecorder(clock)
    recorder = NodeRecorder(RecordSection(directory=str(tmp_path)), decisions, events, Tasks(), clock)
    await recorder.start()
    one = pod("p")
    decisions.pod(one, "eviction", "evicted", LOW, {"signal": "memory.available", "place": 1})
    record = Record(tmp_path)
    await eventually(lambda: list(tmp_path.iterdir()) and len(list(record.rows())) == 2)
    events.pod(one, WARNING, "Evicted", LOW)
    await recorder.stop()
    names = [(one.stream, one.name) for one in record.rows(lambda one: bool(one.pod))]
    assert sorted(names) == [("decision", "eviction evicted"), ("event", "Evicted")]
    assert record.gaps == []


def test_the_command_answers_from_the_record(tmp_path: Path) -> None:
    async def record() -> None:
        clock = lambda: 1_700_000_000.0  # noqa: E731
        decisions = Decisions(clock)
        keeper = NodeRecorder(
            RecordSection(directory=str(tmp_path)), decisions, EventRecorder(clock), Tasks(), clock
        )
        await keeper.start()
        decisions.pod(pod("p"), "eviction", "evicted", LOW, {"signal": "memory.available"})
        decisions.pod(pod("other"), "admission", "admitted", "", {})
        await keeper.stop()

    asyncio.run(record())
    run = CliRunner()
    answer = run.invoke(_kubengine, ["why", "p", "--record", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    assert answer.output.splitlines() == [
        f"2023-11-14 22:13:20Z: default/p was evicted: {LOW.strip()}",
        "    signal: memory.available",
    ]
    plain = run.invoke(_kubengine, ["why", "p", "--record", str(tmp_path), "--json"])
    assert json.loads(plain.output)["causes"][0]["inputs"] == {"signal": "memory.available"}
    other = run.invoke(_kubengine, ["why", "other", "--record", str(tmp_path)])
    assert "was not evicted" in other.output
    assert run.invoke(_kubengine, ["why", "nobody", "--record", str(tmp_path)]).exit_code == 3
