"""The ring of decisions: what it holds, and what those who read it see."""

from __future__ import annotations

import asyncio

import pytest

from engine.api.decisions import BatchedDecision, Decisions
from engine.api.pod import Pod


def numbers(decisions):
    return [decision.number for decision in decisions]


def test_a_decision_names_its_pod_time_and_inputs():
    decisions = Decisions(lambda: 12.5)
    pod = Pod()
    pod.metadata.name, pod.metadata.namespace, pod.metadata.uid = "web", "shop", "u1"
    decisions.pod(pod, "restart", "restarted", "Error", {"exitCode": 1}, container="c")
    (held,) = decisions.after(0)
    assert (held.pod, held.uid, held.container, held.time) == ("shop/web", "u1", "c", 12.5)
    assert (held.kind, held.outcome, held.reason, held.inputs) == (
        "restart", "restarted", "Error", {"exitCode": 1},
    )  # fmt: skip


def test_the_latest_are_held_and_gaps_show_in_the_numbers():
    decisions = Decisions(lambda: 0.0, capacity=3)
    assert decisions.after(0) == []
    for _ in range(5):
        decisions.record("image-gc", "collected", "", {})
    assert numbers(decisions.after(0)) == [3, 4, 5]
    assert numbers(decisions.after(4)) == [5]
    assert numbers(decisions.after(5)) == numbers(decisions.after(9)) == []


@pytest.mark.parametrize("many", [2, 3, 7])
def test_many_at_once_are_held_as_if_one_by_one(many):
    decisions, one_by_one = (Decisions(lambda: 5.0, capacity=4) for _ in range(2))
    everything = [BatchedDecision("collected", f"r{n}", {"n": n}) for n in range(many)]
    for turn in range(3):
        decisions.record("image-gc", "kept", str(turn), {})
        decisions.record_many("image-gc", many, lambda: everything[-4:])
        one_by_one.record("image-gc", "kept", str(turn), {})
        for outcome, reason, inputs in everything:
            one_by_one.record("image-gc", outcome, reason, inputs)
        last = numbers(one_by_one.after(0))[-1]
        for number in (0, last - 5, last - 1, last) if turn else ():
            assert decisions.after(number) == one_by_one.after(number)
    decisions.record_many("image-gc", 0, lambda: everything)
    assert decisions.after(0) == one_by_one.after(0)


async def test_news_reach_every_waiter():
    decisions = Decisions(lambda: 0.0)
    readers = [asyncio.create_task(decisions.news(0)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(reader.done() for reader in readers)
    decisions.record("image-gc", "collected", "", {})
    decisions.record("image-gc", "failed", "", {})
    assert [numbers(await reader) for reader in readers] == [[1, 2], [1, 2]]
    assert numbers(await decisions.news(1)) == [2]
