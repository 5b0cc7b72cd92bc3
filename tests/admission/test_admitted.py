"""Running sums of a node's pods, and the short way in: it takes exactly whom the long way takes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._fast.preemption import _ledger_c, _ledger_py, _requests_c, _requests_py
from engine.admission import NodeAllocations
from engine.api.documents import convert
from engine.api.errors import InvalidInput
from engine.api.node import Node, Taint
from engine.api.pod import Pod

GPU, OTHER = "example.com/gpu", "example.com/other"

amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "ephemeral-storage", GPU, OTHER, "hugepages-2Mi", "oddity"]),
    st.sampled_from(["0", "1", "2", "3", "1500m", "4", "9223372036854775807", "99999999999999999999"]),
    max_size=3,
)
specs = st.fixed_dictionaries(
    {
        "containers": st.lists(
            st.builds(lambda a: {"name": "c", "resources": {"requests": a}}, amounts), max_size=2
        )
    },
    optional={
        "overhead": amounts,
        "nodeName": st.sampled_from(["n", "elsewhere"]),
        "os": st.sampled_from([{"name": "linux"}, {"name": "windows"}]),
        "priority": st.sampled_from([0, 2_000_000_000]),
    },
)
actions = st.sampled_from(["reserve", "reserve", "reserve", "terminating", "remove", "started"])
steps = st.lists(st.tuples(actions, st.integers(0, 4), specs), max_size=12)


def pod(uid: str, spec: dict[str, Any]) -> Pod:
    return convert({"metadata": {"name": uid, "uid": uid}, "spec": spec}, Pod, uid)


def node(pods: str = "3", cpu: str = "4") -> Node:
    allocatable = {"cpu": cpu, "memory": "4", "ephemeral-storage": "4", GPU: "2", "pods": pods}
    return convert({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}, Node, "n")


def state(admitted: NodeAllocations) -> dict[str, Any]:
    admitted.validate()
    used = {name: amount for name, amount in admitted.used.items() if amount}
    return {"pods": list(admitted.pods), "used": used, "rows": list(admitted.table)}


@pytest.mark.parametrize(("fits", "fills"), [(_ledger_c, _requests_c), (_ledger_py, _requests_py)])
@given(steps)
@settings(max_examples=60, deadline=None)
def test_the_fast_path_admits_the_same_pods_as_the_full_one(fits, fills, taken):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("engine.admission.admitted.Ledger", fits.Ledger)
        patched.setattr("engine.tables.pods.Filler", fills.Filler)
        short, long = NodeAllocations(node()), NodeAllocations(node())
        for what, number, spec in taken:
            uid = f"u{number}"
            if what == "reserve":
                newcomer = pod(uid, spec)
                try:
                    failures = long.check(newcomer)
                except InvalidInput:
                    failures = None
                before = state(short)
                if short.expect_if_it_fits(newcomer):
                    assert failures == []
                    long.expect(newcomer)
                else:
                    assert state(short) == before
                    if failures == []:
                        with_both = [_counted(each, newcomer) for each in (short, long)]
                        assert with_both[0] == with_both[1]
            else:
                for each in (short, long):
                    getattr(each, what)(uid)
            assert state(short) == state(long)


def _counted(admitted: NodeAllocations, newcomer: Pod) -> bool:
    try:
        admitted.expect(newcomer)
    except InvalidInput:
        return False
    return True


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": []},
        {"containers": [{"name": "c", "resources": {"requests": {"cpu": "4", "memory": "4"}}}]},
        {"containers": [{"name": "c", "ports": [{"hostPort": 80, "containerPort": 80}]}]},
    ],
)
def test_an_ordinary_pod_takes_the_fast_path(spec):
    admitted = NodeAllocations(node())
    assert admitted.expect_if_it_fits(pod("u", spec))
    assert not admitted.expect_if_it_fits(pod("u", spec))
    assert list(admitted.pods) == ["u"]
    admitted.remove("u")
    assert admitted.expect_if_it_fits(pod("u", spec))


@pytest.mark.parametrize("cpu", ["3", "9223372036854775807"])
def test_a_pod_that_is_resized_before_it_starts_still_holds_nothing(cpu: str):
    """Nobody waits for what it would hold, whether the new amount is taken or refused."""
    asked = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}
    more = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
    admitted = NodeAllocations(node(), [pod("there", asked)])
    admitted.expect(pod("resized", asked))
    with suppress(InvalidInput):
        admitted.update(pod("resized", more))
    admitted.terminating("resized")
    admitted.expect(pod("new", asked))
    assert admitted.in_the_way(pod("new", asked)) == []


def test_a_refused_pod_leaves_no_resource_names():
    admitted = NodeAllocations(node("0"))
    asked = {"containers": [{"name": "c", "resources": {"requests": {OTHER: "1"}}}]}
    assert not admitted.expect_if_it_fits(pod("u", asked))
    assert admitted.check(pod("u", asked))
    assert OTHER not in admitted.table.resources.ids


def test_changed_capacity_applies_once_it_is_reported():
    admitted = NodeAllocations(node())
    asked = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "5"}}}]}
    assert not admitted.expect_if_it_fits(pod("u", asked))
    admitted.set_node(node(cpu="8"))
    assert admitted.expect_if_it_fits(pod("u", asked))


def test_a_node_changed_in_place_is_read_again():
    told = node()
    admitted = NodeAllocations(told)
    asked = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "5"}}}]}
    told.allocatable.update(node(cpu="8").allocatable)
    admitted.set_node(told)
    assert not admitted.check(pod("u", asked))
    told.spec.taints = [Taint(key="k", effect="NoExecute")]
    admitted.set_node(told)
    assert admitted.check(pod("u", asked))
    told.spec.taints.clear()
    admitted.set_node(told)
    assert not admitted.check(pod("u", asked))
