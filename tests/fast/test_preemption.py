"""The preemption kernel, in all its builds, gives the twin's answers, whatever the numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine._fast.preemption import _preemption_c as kernel
from engine._fast.preemption import _preemption_py as twin

CPU = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
WIDTHS = [2] + [4] * ("avx2" in CPU) + [8] * ("avx512dq" in CPU)
HUGE = 2**62


def amount(rng: np.random.Generator) -> int:
    """Draw 0, a usual request, any amount, or one near the limits of doubles and of sums of int64."""
    low, high = (
        (0, 0),
        (1, 3),
        (100, 100),
        (250, 2000),
        (0, 2**20),
        (0, 2**40),
        (HUGE - 5, HUGE + 5),
        (2**53 - 2, 2**53 + 2),
    )[rng.integers(8)]
    return int(rng.integers(low, high, endpoint=True))


def drawn(rng: np.random.Generator, largest: int):
    """Draw columns of 2 to 6 resources with few distinct values, so that ties abound, and their needs."""
    resources = int(rng.integers(2, 6, endpoint=True))
    pods = int(rng.choice([0, 1, largest, rng.integers(largest, endpoint=True)], p=[0.03, 0.03, 0.04, 0.9]))
    values = np.array([amount(rng) for _ in range(rng.integers(1, 7))], np.int64)
    ranking = values[rng.integers(0, len(values), (resources, pods))]
    if rng.integers(2):
        ranking = rng.integers(0, rng.choice([4, 1000, 2**34]), (resources, pods))
    qos = rng.integers(0, 3, pods).astype(np.uint8)
    if rng.integers(2):
        qos[:] = rng.integers(0, 3)
    flags = (rng.integers(0, 16, pods) | rng.integers(0, 8)).astype(np.uint8)
    priority = rng.choice(np.array([-5, 0, 10, 2_000_000_000], np.int32), pods)
    ids = rng.integers(-1, resources, rng.integers(0, 7)).astype(np.int32)
    needs = np.array([_part_of(rng, ranking, id) for id in ids.tolist()], np.int64)
    rows = (
        None
        if rng.integers(2)
        else rng.permutation(pods).astype(np.int32)[: rng.integers(pods, endpoint=True)]
    )
    ours = (None, 0, 10, 2_000_000_001)[rng.integers(4)]
    return ranking, qos, flags, priority, rows, bool(rng.integers(2)), ours, ids, needs


def _part_of(rng: np.random.Generator, ranking: np.ndarray, id: int) -> int:
    """Draw any amount, or a share of the total, up to all of it, which can just be met."""
    total = ranking.shape[1] if id < 0 else min(sum(ranking[id].tolist()), 2**63 - 1)
    share = (rng.random(), 0.0, 1.0)[rng.choice(3, p=[0.8, 0.1, 0.1])]
    return amount(rng) if rng.integers(2) else min(int(total * share), 2**63 - 1)


def agree(situation, answer=None) -> None:
    expected, short = answer or twin.victims(*situation)
    for width in WIDTHS:
        kernel.use_width(width)
        try:
            got, got_short = kernel.victims(*situation)
        finally:
            kernel.use_width(0)
        assert got.tolist() == expected.tolist(), f"{width} doubles wide"
        assert got_short.tolist() == short.tolist()


@pytest.mark.parametrize(("cases", "largest"), [(10_000, 40), (300, 400)])
def test_kernel_is_the_twin(cases, largest):
    for seed in range(cases):
        try:
            agree(drawn(np.random.default_rng([largest, seed]), largest))
        except AssertionError as wrong:
            raise AssertionError(f"seed {seed}") from wrong


@pytest.mark.parametrize(
    ("pods", "share"),
    [(900, 0.01), (900, 0.7), (6_000, 0.01), (6_000, 0.1)],
    ids=["few", "until few are left", "many", "many rounds"],
)
@pytest.mark.parametrize(
    "kind",
    ["random", "sizes", "shapes", "too many shapes", "pods only", "one value", "two values", "correlated",
     "clustered", "huge", "heavy"],
)  # fmt: skip
def test_fronts_and_kinds_in_larger_tables(kind, share, pods):
    """Large enough for fronts: chosen by blocks and by rows, cut through equals, outlived and in vain; and
    with equal candidates, of so few kinds that one of each is looked at, and of too many."""
    rng = np.random.default_rng([len(kind), int(share * 100), pods])
    ranking = rng.integers(0, 2**33, (3, pods))
    if kind == "sizes":
        ranking = np.array([100, 250, 500, 1000, 2000])[rng.integers(0, 5, (3, pods))]
    elif kind == "shapes":
        ranking = 2 + rng.integers(0, 20, (3, 150)).take(rng.integers(0, 150, pods), axis=1)
    elif kind == "too many shapes":
        ranking = 2 + rng.integers(0, 20, (3, 550)).take(rng.integers(0, 550, pods), axis=1)
    elif kind == "pods only":
        ranking = rng.integers(0, 50, (3, pods))
    elif kind == "one value":
        ranking[:] = 7
    elif kind == "two values":
        ranking[0], ranking[1] = np.where(rng.integers(0, 2, pods), [[3], [5]], [[5], [3]])
        ranking[2] = 4
    elif kind == "correlated":
        ranking[1] = ranking[0] * 2 + rng.integers(0, 5, pods)
    elif kind == "clustered":
        ranking.sort(axis=1)
    elif kind == "huge":
        ranking = rng.integers(2**52, 2**54, (3, pods))
    elif kind == "heavy":
        ranking = (rng.pareto(1.1, (3, pods)) * 2**20).astype(np.int64)
    ids = np.array([-1] if kind == "pods only" else [0, 1, 2], np.int32)
    total = [pods if id < 0 else sum(ranking[id].tolist()) for id in ids]
    needs = np.array([int(amount * share) for amount in total], np.int64)
    flags = np.full(pods, 5, np.uint8)
    situation = (
        ranking,
        np.ones(pods, np.uint8),
        flags,
        np.zeros(pods, np.int32),
        None,
        True,
        None,
        ids,
        needs,
    )
    agree(situation, in_numpy(*situation))


def in_numpy(ranking, qos, flags, priority, rows, critical, ours, ids, needs):
    """Apply the twin's rule for one class that suffices, on whole arrays: the twin would take minutes."""
    order, chosen = np.arange(ranking.shape[1]), []
    wanted = list(zip(ids.tolist(), needs.tolist(), strict=True))
    while wanted:
        distance = np.zeros(len(order))
        for id, need in wanted:
            has = ranking[id, order] if id >= 0 else np.ones(len(order), np.int64)
            share = np.maximum((need - has).astype(float), 0.0) / float(need)
            distance += share * share
        near = np.flatnonzero(distance == distance.min())
        best = max(near.tolist(), key=lambda at: (-ranking[1, order[at]], -ranking[0, order[at]], at))
        row = int(order[best])
        wanted = [(id, need - (int(ranking[id, row]) if id >= 0 else 1)) for id, need in wanted]
        wanted = [(id, need) for id, need in wanted if need > 0]
        chosen.append(row)
        order[best] = order[-1]
        order = order[:-1]
    return np.array(chosen, np.int32), np.zeros(len(ids), np.int64)


def test_the_rule_in_numpy_is_the_twins():
    rng = np.random.default_rng(3)
    ranking = rng.integers(0, 6, (3, 60))
    situation = (
        ranking, np.ones(60, np.uint8), np.full(60, 5, np.uint8), np.zeros(60, np.int32), None, True, None,
        np.array([0, 1, 2, -1], np.int32), np.array([30, 25, 40, 9]),
    )  # fmt: skip
    agree(situation, in_numpy(*situation))
    assert in_numpy(*situation)[0].tolist() == twin.victims(*situation)[0].tolist()


@pytest.mark.parametrize("seed", range(50))
def test_many_nodes_are_one_node_each(seed):
    rng = np.random.default_rng([seed])
    nodes, threads = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    ranking, qos, flags, priority, _, critical, ours, ids, needs = drawn(rng, 20)
    cuts = np.linspace(0, len(flags), nodes + 1).astype(np.int64)
    per_node = np.ascontiguousarray(np.tile(needs // nodes, (nodes, 1)))
    answer = kernel.victims_by_node(
        ranking, qos, flags, priority, cuts, critical, ours, ids, per_node, threads
    )
    expected = twin.victims_by_node(ranking, qos, flags, priority, cuts, critical, ours, ids, per_node)
    assert [each.tolist() for each in answer] == [each.tolist() for each in expected]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resources": np.array([7], np.int32)}, "no column"),
        ({"resources": np.array([0, 1], np.int32)}, "2 resources but 1 needs"),
        ({"rows": np.array([3], np.int32)}, "not in the table"),
        ({"qos": np.zeros(1, np.uint8)}, "same number of rows"),
    ],
)
def test_the_kernel_refuses_arrays_that_do_not_go_together(change, message):
    arguments = {
        "ranking": np.ones((3, 2), np.int64),
        "qos": np.zeros(2, np.uint8),
        "flags": np.ones(2, np.uint8),
        "priority": np.zeros(2, np.int32),
        "rows": None,
        "critical": True,
        "preemptor_priority": None,
        "resources": np.array([0], np.int32),
        "needs": np.array([1]),
    }
    with pytest.raises(ValueError, match=message):
        kernel.victims(*(arguments | change).values())


def test_flags_are_those_of_the_tables():
    from engine import tables

    assert (twin.LIVE, twin.CRITICAL, twin.HAS_PRIORITY) == (
        tables.LIVE,
        tables.CRITICAL,
        tables.HAS_PRIORITY,
    )
    assert (twin.CPU, twin.MEMORY, twin.PODS) == (tables.CPU_ID, tables.MEMORY_ID, tables.PODS_ID)
