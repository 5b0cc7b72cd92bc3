"""Explain how the agent's preemption chooses its victims on each node: its steps, and why other pods stay."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from engine.admission import Preemption
from engine.admission.decision import AdmissionStep, Requirements, why_not_preemptable
from engine.admission.preemption import KUBELET
from engine.api.pod import Pod
from engine.api.qos import is_critical
from engine.plan.answers.answer import RESOURCE_UNITS, Rows
from engine.plan.answers.readable import readable
from engine.plan.placement.fit import NodeUse
from engine.plan.questions.preempt_policy import node_table


def add_account(
    rows: Rows,
    use: NodeUse,
    pod: Pod,
    policy: str,
    short: Iterable[tuple[int, dict[str, int]]],
    offsets: NDArray[np.int64],
    chosen: NDArray[np.int32],
    stuck: NDArray[np.bool_],
) -> None:
    """Add for each node in `short` a row `step` per victim in the order of choice (amount: the number of the
    step), then a row `passed-over` per pod that stays (reason: why).

    `short` yields nodes and the missing amounts by resource. The victims of node i are rows
    `chosen[offsets[i]:offsets[i + 1]]`. On a `stuck` node, bool[nodes], even all pods are not enough: it gets
    no steps, and only the pods that may not be preempted are listed.
    """
    critical, priority = is_critical(pod), pod.spec.priority
    for node, missing in short:
        table = node_table(use, node)
        first, last = use.tables.offsets[node : node + 2].tolist()
        labels = use.snapshot.pod_labels(np.arange(first, last)).to_pylist()
        if stuck[node]:
            for row in table.rows().tolist():
                why = why_not_preemptable(
                    table, row, critical, priority, respect_protection=policy != KUBELET
                )
                if why is not None:
                    rows.add(node, "passed-over", labels[row], why, 0, "")
            continue
        victims = (chosen[offsets[node] : offsets[node + 1]] - first).tolist()
        decision = Preemption(
            policy=policy,
            preemptor=pod.full_name,
            requirements=tuple(missing.items()),
            victims=tuple(labels[row] for row in victims),
            rows=tuple(victims),
            table=table,
            critical=critical,
            priority=priority,
        )
        for number, step in enumerate(decision.steps(), start=1):
            rows.add(node, "step", labels[int(step.uid)], _reason(step), number, "")
        for other in decision.passed_over():
            rows.add(node, "passed-over", labels[int(other.uid)], other.why, 0, "")


def _reason(step: AdmissionStep) -> str:
    """Return the rank of a victim, what was short before the step, and what the victim frees of it."""
    rank = f"{step.qos}, " + ("no priority" if step.priority is None else f"priority {step.priority}")
    short, frees = _listed(step.short), _listed(step.frees)
    return f"{rank}; short of {short}; frees {frees} of that; distance {step.distance:.4g}"


def _listed(amounts: Requirements) -> str:
    return ", ".join(
        f"{name} {readable(amount, RESOURCE_UNITS.get(name, 'pieces'))}" for name, amount in amounts
    )
