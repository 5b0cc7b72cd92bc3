"""`preempt`: policies against brute force, accounts, and refusals that leave the table alone."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.admission import NotEnoughToPreempt, preempt
from engine.admission.fewest import Budget, Candidate, fewest_by_priority, fewest_victims
from engine.api.documents import convert
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.tables import PodTable


def make_pod(name: str, requests: dict[str, str] | None = None, **metadata_and_spec) -> Pod:
    annotations = metadata_and_spec.pop("annotations", {})
    spec = {"containers": [{"name": "c", "resources": {"requests": requests or {}}}], **metadata_and_spec}
    return convert(
        {"metadata": {"name": name, "uid": name, "annotations": annotations}, "spec": spec}, Pod, name
    )


CRITICAL = make_pod("critical", priority=2_000_000_000)

candidates = st.lists(
    st.builds(
        Candidate,
        row=st.just(0),
        amounts=st.tuples(st.integers(0, 8), st.integers(0, 8)),
        priority=st.integers(-2, 3),
    ),
    min_size=1,
    max_size=9,
).map(lambda drawn: [Candidate(row, c.amounts, c.priority) for row, c in enumerate(drawn)])


def total(chosen, index: int) -> int:
    return sum(candidate.amounts[index] for candidate in chosen)


@given(candidates, st.floats(0.05, 1), st.floats(0.05, 1))
@settings(max_examples=300, deadline=None)
def test_minimal_is_what_brute_force_finds(drawn, first, second):
    needs = [max(1, int(total(drawn, 0) * first)), max(1, int(total(drawn, 1) * second))]
    if any(total(drawn, index) < need for index, need in enumerate(needs)):
        return

    def rank(chosen):
        excess = 0.0
        for index, need in enumerate(needs):
            excess += (total(chosen, index) - need) / need
        return len(chosen), sum(c.priority for c in chosen), excess

    enough = (
        chosen
        for size in range(len(drawn) + 1)
        for chosen in combinations(drawn, size)
        if all(total(chosen, index) >= need for index, need in enumerate(needs))
    )
    answer = fewest_victims(drawn, needs, Budget(60.0))
    assert answer.proven
    assert rank(answer.chosen) == pytest.approx(min(map(rank, enough)))


@given(candidates, st.floats(0.05, 1))
@settings(max_examples=300, deadline=None)
def test_priority_touches_the_lowest_level_it_can_and_few_of_it(drawn, share):
    needs = [max(1, int(total(drawn, 0) * share)), 0]
    if total(drawn, 0) < needs[0]:
        return

    def rank(chosen):
        levels = sorted({c.priority for c in drawn}, reverse=True)
        counts = [sum(c.priority == level for c in chosen) for level in levels]
        return next((-place, number) for place, number in enumerate(counts) if number)

    enough = (
        chosen
        for size in range(len(drawn) + 1)
        for chosen in combinations(drawn, size)
        if total(chosen, 0) >= needs[0]
    )
    answer = fewest_by_priority(drawn, needs, Budget(60.0))
    assert answer.proven
    assert rank(answer.chosen) == min(map(rank, enough))


def test_the_deadline_is_enforced_and_reported():
    rng = np.random.default_rng(1)
    drawn = [Candidate(row, tuple(rng.integers(900, 1100, 3).tolist()), 0) for row in range(300)]
    needs = [total(drawn, index) // 3 for index in range(3)]
    answer = fewest_victims(drawn, needs, Budget(0.05))
    assert not answer.proven
    assert all(total(answer.chosen, index) >= need for index, need in enumerate(needs))
    pods = [make_pod(f"p{c.row}", {"cpu": f"{c.amounts[0]}m", "memory": str(c.amounts[1])}) for c in drawn]
    decision = preempt(
        pods, CRITICAL, {"cpu": needs[0], "memory": needs[1]}, policy="minimal", time_limit=0.0
    )
    assert not decision.proven
    assert "best set found so far" in decision.note
    by_steps = [
        preempt(
            pods, CRITICAL, {"cpu": needs[0], "memory": needs[1]}, policy="minimal", steps=900, time_limit=60
        )
        for _ in range(2)
    ]
    assert not by_steps[0].proven
    assert by_steps[0].victims == by_steps[1].victims


def test_the_report_names_victims_reasons_and_the_remaining_usage():
    pods = [
        make_pod("best-effort"),
        make_pod("small", {"cpu": "1", "memory": "100"}, priority=5),
        make_pod("large", {"cpu": "3", "memory": "100"}),
        make_pod("also-critical", {"cpu": "4"}, annotations={"kubernetes.io/config.source": "file"}),
        make_pod("guarded", {"cpu": "100m"}, annotations={"kubengine.dev/do-not-preempt": "true"}),
    ]
    decision = preempt(pods, CRITICAL, [("cpu", 3500), ("memory", 150)])
    assert decision.victims == ("large", "small")
    first, second = decision.steps()
    assert (first.uid, first.short, first.frees) == (
        "large",
        (("cpu", 3500), ("memory", 150)),
        (("cpu", 3000), ("memory", 100)),
    )
    assert second.short == (("cpu", 500), ("memory", 50))
    assert second.distance == 0
    passed = {other.uid: other.why for other in decision.passed_over()}
    assert passed["best-effort"] == passed["guarded"] == "enough was freed without it"
    assert "also critical" in passed["also-critical"]
    minimal = preempt(pods, CRITICAL, {"cpu": 3500}, policy="minimal")
    assert {o.uid: o.why for o in minimal.passed_over()}["guarded"] == "protected by an annotation"
    assert minimal.describe()["steps"][0]["short"] == [{"resource": "cpu", "quantity": 3500}]


def test_guaranteed_pods_are_spared_where_lesser_ones_suffice():
    limits = {"cpu": "2", "memory": "1Gi"}
    guaranteed = make_pod("guaranteed", limits)
    guaranteed.spec.containers[0].resources.limits = guaranteed.spec.containers[0].resources.requests
    decision = preempt([guaranteed, make_pod("burstable", {"cpu": "1"})], CRITICAL, {"cpu": 1500})
    assert decision.victims == ("guaranteed",)
    decision = preempt([guaranteed, make_pod("burstable", {"cpu": "1"})], CRITICAL, {"cpu": 800})
    assert decision.victims == ("burstable",)


@pytest.mark.parametrize(
    ("requirements", "preemptor", "keywords", "message"),
    [
        ({"cpu": -1}, CRITICAL, {}, "negative"),
        ({"cpu": 2**63}, CRITICAL, {}, "beyond 64 bits"),
        ([("cpu", 1), ("cpu", 1)], CRITICAL, {}, "given twice"),
        ({"what ever": 1}, CRITICAL, {}, "not a resource name"),
        ({"cpu": 1}, make_pod("a"), {}, "among the node's pods"),
        ({"cpu": 1}, CRITICAL, {"policy": "nicest"}, "expected one of kubelet, priority, minimal"),
    ],
)
def test_nonsense_is_named_and_changes_nothing(requirements, preemptor, keywords, message):
    table = PodTable.from_pods([make_pod("a", {"cpu": "1"})])
    before = {name: array.copy() for name, array in table.columns.arrays()}
    with pytest.raises(InvalidInput, match=message):
        preempt(table, preemptor, requirements, **keywords)
    table.validate()
    for name, array in table.columns.arrays():
        assert np.array_equal(array, before[name]), name


def test_repeated_uids_are_refused():
    with pytest.raises(InvalidInput, match="in the table already"):
        preempt([make_pod("a"), make_pod("a")], CRITICAL, {"cpu": 1})


@pytest.mark.parametrize("policy", ["kubelet", "priority", "minimal"])
def test_a_resource_that_no_pod_has_stays_insufficient(policy):
    with pytest.raises(NotEnoughToPreempt) as failure:
        preempt([make_pod("a", {"cpu": "1"})], CRITICAL, {"cpu": 1500, "e.com/gpu": 2}, policy=policy)
    assert failure.value.short == (("cpu", 500), ("e.com/gpu", 2))


def test_pods_as_a_resource():
    decision = preempt(
        [make_pod("a", {"memory": "9"}), make_pod("b", {"memory": "3"})], CRITICAL, {"pods": 1}
    )
    assert decision.victims == ("b",)
