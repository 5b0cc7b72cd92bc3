"""`engine.rank`: the order of eviction over plain documents."""

from __future__ import annotations

from typing import Any

import pytest

import engine
from engine import InvalidInput


def pod(name: str, priority: int = 0, **fields: Any) -> dict[str, Any]:
    requests = {"memory": "100Mi", "ephemeral-storage": "1Gi"}
    spec = {"priority": priority, "containers": [{"name": "c", "resources": {"requests": requests}}]}
    return {"metadata": {"name": name, **fields}, "spec": spec}


def order(ranked: list[engine.RankedPod]) -> list[str]:
    assert [each.place for each in ranked] == list(range(1, len(ranked) + 1))
    return [each.pod.removeprefix("default/") for each in ranked]


def test_excess_comes_before_priority_and_priority_before_its_size() -> None:
    pods = [pod("inside"), pod("urgent", 5), pod("little"), pod("much")]
    usage = {"inside": "99Mi", "urgent": "900Mi", "little": "101Mi", "much": "300Mi"}
    ranked = engine.rank(pods, {f"default/{name}": amount for name, amount in usage.items()})
    assert order(ranked) == ["much", "little", "urgent", "inside"]
    assert (ranked[0].usage, ranked[0].request) == (300 << 20, 100 << 20)
    assert ranked[-1].reason == "stays within its request, priority 0"


def test_a_pod_of_unknown_usage_comes_first_and_a_critical_one_is_marked() -> None:
    ranked = engine.rank([pod("dns", 2_000_000_000), pod("new")], {"default/dns": "1Gi"})
    assert order(ranked) == ["new", "dns"]
    assert [each.critical for each in ranked] == [False, True]
    assert ranked[0].reason == "its usage is unknown"


def test_disk_and_processes_are_counted_in_their_own_units() -> None:
    pods = [pod("a"), pod("b", namespace="other", uid="uid-b")]
    assert (
        order(engine.rank(pods, {"default/a": 1 << 20, "uid-b": 2 << 30}, "ephemeral-storage"))[0]
        == "other/b"
    )
    ranked = engine.rank(pods, {"default/a": 7, "other/b": 3}, "pids")
    assert [(each.usage, each.request) for each in ranked] == [(7, None), (3, None)]


@pytest.mark.parametrize(
    ("usage", "resource", "message"),
    [
        ({"default/a": "3Xi"}, "memory", "usage of 'default/a': quantity '3Xi' is not valid"),
        ({"a": 3}, "memory", "usage of 'a': is not among the pods; name it namespace/name"),
        ({}, "cpu", "resource 'cpu': must be one of memory, ephemeral-storage, pids"),
    ],
)
def test_wrong_input_is_refused_by_name(usage: dict[str, Any], resource: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        engine.rank([pod("a")], usage, resource)


def test_the_callers_documents_stay_as_they_were() -> None:
    given = pod("a")
    engine.rank([given], {"default/a": 1})
    assert given == pod("a")
