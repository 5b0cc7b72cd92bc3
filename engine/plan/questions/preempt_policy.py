"""Choose victims by preemption policies other than the kubelet's, one node after another.

`engine.admission.preempt` searches. On a node, its time is limited. Here its steps are limited instead, so
that an answer does not depend on the speed of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.admission import NotEnoughToPreempt, preempt
from engine.api.pod import Pod
from engine.plan.placement.fit import Fit, NodeUse
from engine.tables import PodColumns, PodTable

STEPS = 1_000_000
"""How many sets of pods a search may examine, complete or partial."""


def node_columns(columns: PodColumns, first: int, last: int) -> PodColumns:
    """Return a copy of rows `first` to `last` (exclusive)."""
    copied = replace(columns, fractions={})
    for name in ("node", "qos", "flags", "priority", "creation", "requests", "ranking", "limits"):
        setattr(copied, name, np.ascontiguousarray(getattr(columns, name)[..., first:last]))
    return copied


def node_table(use: NodeUse, node: int) -> PodTable:
    """Return a table of the pods of one node. The uid of a pod is its position on the node, as text."""
    tables = use.tables
    first, last = int(tables.offsets[node]), int(tables.offsets[node + 1])
    uids = [str(position) for position in range(last - first)]
    return PodTable.from_columns(node_columns(tables.columns, first, last), tables.resources, uids)


def short_nodes(checked: Fit, needs: NDArray[np.int64]) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield each node on which something is short, and the missing amounts by resource.

    `needs` is int64[resources, nodes].
    """
    for node in np.flatnonzero(needs.any(axis=0)).tolist():
        amounts = zip(checked.resources, needs[:, node].tolist(), strict=True)
        yield node, {name: amount for name, amount in amounts if amount}


def victims_by_policy(
    use: NodeUse, pod: Pod, checked: Fit, needs: NDArray[np.int64], policy: str
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], int]:
    """Return the victims on all nodes, and how many searches were cut off before they were complete.

    The victims of node i are rows `chosen[offsets[i]:offsets[i + 1]]` of the first two arrays, offsets and
    chosen. The third, int64[resources, nodes], is what all preemptable pods together do not free.
    """
    chosen: list[int] = []
    counts = np.zeros(needs.shape[1], np.int64)
    left = np.zeros_like(needs)
    unproven = 0
    for node, short in short_nodes(checked, needs):
        first = int(use.tables.offsets[node])
        try:
            found = preempt(node_table(use, node), pod, short, policy=policy, time_limit=inf, steps=STEPS)
        except NotEnoughToPreempt as error:
            for name, amount in error.short:
                left[checked.resources.index(name), node] = amount
        else:
            chosen += [first + row for row in found.rows]
            counts[node] = len(found.rows)
            unproven += not found.proven
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return offsets, np.array(chosen, np.int32), left, unproven
