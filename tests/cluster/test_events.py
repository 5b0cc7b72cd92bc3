"""Which events are written, and how they look."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import msgspec
import pytest

from engine.api.documents import convert
from engine.api.events import Event, EventRecorder
from engine.api.pod import Pod
from engine.api.token_bucket import TokenBucket, api_rate
from engine.cluster.event_series import BURST, SIMILAR, EventSeries
from engine.cluster.event_writer import EventWriter, event_object
from tests.cluster.conftest import Connect
from tests.cluster.control_plane import ControlPlane
from tests.waiting import eventually


def make_event(reason="Started", message="m", at=1000.0, pod="ns/p", container=""):
    return Event("Normal", reason, message, at, pod, "uid", container)


def test_the_same_words_are_counted_up():
    series = EventSeries()
    first = series.next(make_event(), "a")
    second = series.next(make_event(at=1010.0), "b")
    assert (first.name, first.count, first.first) == ("a", 1, 1000.0)
    assert (second.name, second.count, second.first) == ("a", 2, 1000.0)
    assert series.next(make_event(container="c"), "c").count == 1
    assert series.next(make_event(pod="ns/q"), "d").name == "d"


def test_many_messages_of_one_reason_are_combined():
    series = EventSeries()
    shown = [series.next(make_event(message=f"m{i}", at=1000.0 + i), f"n{i}") for i in range(SIMILAR + 3)]
    assert [each.count for each in shown] == [1] * SIMILAR + [2, 3, 4]
    assert shown[-1].name == f"n{SIMILAR - 1}"
    assert shown[-1].event.message == f"(combined from similar events): m{SIMILAR + 2}"
    later = series.next(make_event(message="new", at=5000.0), "x")
    assert (later.count, later.event.message) == (1, "new")


def test_events_of_one_object_are_limited_and_others_unaffected():
    series = EventSeries()
    shown = [series.next(make_event(reason=f"R{i}"), f"n{i}") for i in range(BURST + 5)]
    assert sum(each is not None for each in shown) == BURST
    assert series.next(make_event(pod="ns/other"), "o") is not None
    assert series.next(make_event(reason="Late", at=1301.0), "l") is not None
    assert series.next(make_event(reason="Later", at=1301.0), "m") is None


def test_an_event_that_the_server_forgot_is_created_again():
    series = EventSeries()
    series.next(make_event(), "a")
    created = series.recreated(series.next(make_event(at=1001.0), "b"), "c")
    assert (created.name, created.count, created.first) == ("c", 1, 1001.0)
    assert series.next(make_event(at=1002.0), "d").name == "c"


@pytest.mark.parametrize("kind", ["containers", "initContainers", "ephemeralContainers"])
def test_an_event_names_its_object(kind: str):
    series = EventSeries()
    recorder = EventRecorder(clock=lambda: 1000.0)
    spec = {"containers": [{"name": "c"}], kind: [{"name": "main"}]}
    pod = convert({"metadata": {"namespace": "ns", "name": "p", "uid": "u"}, "spec": spec}, Pod, "p")
    recorder.pod(pod, "Normal", "Started", "m", container="main")
    value = event_object(series.next(next(iter(recorder)), "p.1"), "n")
    assert value["involvedObject"]["fieldPath"] == f"spec.{kind}{{main}}"
    assert value["metadata"] == {"name": "p.1", "namespace": "ns"}
    assert value["source"] == {"component": "kubelet", "host": "n"}
    node = event_object(series.next(Event("Normal", "NodeReady", "m", 0.0), "n.1"), "n")
    assert node["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n"}
    assert node["metadata"]["namespace"] == "default"
    assert node["firstTimestamp"] == "1970-01-01T00:00:00Z"


def test_so_many_pass_at_once_and_then_so_many_a_second():
    rate = TokenBucket(50, 3)
    assert [round(rate.wait(10.0), 3) for _ in range(5)] == [0, 0, 0, 0.02, 0.04]
    assert round(rate.wait(10.05), 3) == 0.01
    assert [round(rate.wait(99.0), 3) for _ in range(4)] == [0, 0, 0, 0.02]


def test_an_unset_rate_is_the_clients_default():
    rate = api_rate(0, 0)
    assert [round(rate.wait(0.0), 3) for _ in range(12)] == [0] * 10 + [0.2, 0.4]


def test_one_passes_only_when_it_need_not_wait():
    rate = TokenBucket(5, 2)
    assert [rate.take(1.0) for _ in range(3)] == [True, True, False]
    assert not rate.take(1.1)
    assert rate.take(1.21)
    assert not rate.take(1.21)


async def test_an_event_that_a_deleted_namespace_refuses_is_no_warning(
    real: ControlPlane, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client, stranger = connect(real.admin), connect(real.bootstrap)
    await client.create("/api/v1/namespaces", {"metadata": {"name": "leaving"}}, msgspec.Raw)
    await client.delete("/api/v1/namespaces/leaving", {})
    refused = ((client, "leaving/p"), (client, "missing/p"), (stranger, "default/p"))

    def lost() -> list[tuple[str, str]]:
        written = [(record.levelname, record.getMessage()) for record in caplog.records]
        return [(level, text.split()[3]) for level, text in written if " is lost: " in text]

    def has_lost(events: int) -> bool:
        return len(lost()) == events

    with caplog.at_level(logging.DEBUG, "kubengine.cluster"):
        for number, (writers_client, pod) in enumerate(refused, start=1):
            writer = EventWriter(writers_client, "n1", TokenBucket(1000.0, 1000))
            writer.add(make_event(pod=pod))
            running = asyncio.create_task(writer.run())
            await eventually(partial(has_lost, number))
            running.cancel()
    assert lost() == [("DEBUG", "leaving/p"), ("DEBUG", "missing/p"), ("WARNING", "default/p")]
