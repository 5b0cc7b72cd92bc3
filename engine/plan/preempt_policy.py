"""The policies beside the kubelet's, node by node through `engine.admission.preempt`.

Their searches are bounded in time on a node; here they are bounded in steps, so that an answer does not
depend on how fast the machine is.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from engine.admission import NotEnoughToPreempt, preempt
from engine.api.pod import Pod
from engine.plan.fit import Fit, NodeUse
from engine.tables import PodColumns, PodTable

STEPS = 1_000_000
"""How many sets a search may look at, in part or whole."""


def node_columns(columns: PodColumns, first: int, last: int) -> PodColumns:
    """One node's rows, copied."""
    mine = replace(columns, fractions={})
    for name in ("node", "qos", "flags", "priority", "creation", "requests", "ranking", "limits"):
        setattr(mine, name, np.ascontiguousarray(getattr(columns, name)[..., first:last]))
    return mine


def victims_by_policy(
    use: NodeUse, pod: Pod, checked: Fit, needs: NDArray[np.int64], policy: str
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], int]:
    """Offsets, victim rows, what stays short as int64[k, nodes], and how many searches were cut off."""
    tables = use.tables
    chosen: list[int] = []
    offsets = np.zeros(len(tables.offsets), np.int64)
    left = np.zeros_like(needs)
    unproven = 0
    for node in range(needs.shape[1]):
        short = {
            name: int(n) for name, n in zip(checked.resources, needs[:, node].tolist(), strict=True) if n
        }
        if short:
            first, last = int(tables.offsets[node]), int(tables.offsets[node + 1])
            table = PodTable.from_columns(
                node_columns(tables.columns, first, last),
                tables.resources,
                [str(r) for r in range(last - first)],
            )
            try:
                found = preempt(table, pod, short, policy=policy, time_limit=inf, steps=STEPS)
            except NotEnoughToPreempt as error:
                for name, amount in error.short:
                    left[checked.resources.index(name), node] = amount
            else:
                chosen += [first + row for row in found.rows]
                unproven += not found.proven
        offsets[node + 1] = len(chosen)
    return offsets, np.array(chosen, np.int32), left, unproven
