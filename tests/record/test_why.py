"""`kubengine why` answers from a record, also for a pod that is gone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Measured
from engine.api.errors import Unavailable
from engine.api.events import WARNING
from engine.api.kubengine_config import KubengineConfiguration, RecordSection
from engine.cli import _kubengine
from engine.host.node_context import NodeContext
from engine.node.decisions.recorder import NodeRecorder
from engine.node.stats.used import NodeUsage
from engine.record.blocks import RecordRow
from engine.record.reader import Record
from engine.record.why import causes, inputs_in_words, is_about
from tests.shadow.observations import pod
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


def context_of(directory: Path) -> NodeContext:
    """Return the context of a node whose configuration names a record; its clock does not move."""
    return NodeContext.create(
        KubeletConfiguration(max_pods=77),
        KubengineConfiguration(record=RecordSection(directory=str(directory))),
        name="n1",
        root=directory,
        clock=lambda: 1_700_000_000.0,
    )


async def no_usage() -> NodeUsage:
    raise Unavailable("no pod runs", subject="n1")


def said(record: Record, name: str) -> bool:
    return any(one.name == name for one in record.rows())


async def test_what_decisions_were_computed_from_is_before_them(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    recorder = NodeRecorder(context, no_usage)
    await recorder.start()
    tell = context.decisions.record_measured
    assert tell is not None
    one = pod("p")
    tell(Measured("pod", "arrives", pod=one.full_name, uid=one.uid, inputs={"pod": one}))
    one.metadata.name = "changed since"
    context.decisions.pod(pod("p"), "admission", "admitted", "", {})
    tell(Measured("pressure", "signals", "memory.available", [5, 5, 100, 200]))
    await recorder.stop()
    rows = [row for row in Record(tmp_path).rows() if row.stream != "record"]
    assert [(row.stream, row.name) for row in rows] == [
        ("node", "configuration"), ("pod", "arrives"), ("decision", "admission admitted"),
        ("pressure", "signals"),
    ]  # fmt: skip
    assert (rows[0].inputs["name"], rows[0].inputs["kubelet"]["maxPods"]) == ("n1", 77)
    assert rows[1].inputs["pod"]["metadata"]["name"] == "p"
    assert (rows[3].text, rows[3].values) == ("memory.available", (5, 5, 100, 200))


async def test_the_agent_keeps_decisions_and_events(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    recorder, events = NodeRecorder(context, no_usage), context.recorder
    await recorder.start()
    one = pod("p")
    context.decisions.pod(one, "eviction", "evicted", LOW, {"signal": "memory.available", "place": 1})
    record = Record(tmp_path)
    await eventually(lambda: list(tmp_path.iterdir()) and said(record, "eviction evicted"))
    events.pod(one, WARNING, "Evicted", LOW)
    await recorder.stop()
    names = [(one.stream, one.name) for one in record.rows(lambda one: bool(one.pod))]
    assert sorted(names) == [("decision", "eviction evicted"), ("event", "Evicted")]
    assert record.gaps == []


def test_the_command_answers_from_the_record(tmp_path: Path) -> None:
    async def record() -> None:
        context = context_of(tmp_path)
        keeper, decisions = NodeRecorder(context, no_usage), context.decisions
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
