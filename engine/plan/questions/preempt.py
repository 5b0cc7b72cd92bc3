"""Compute what one pod, or each of many, does to every node: it fits, it preempts pods, or it cannot run.

Failures are those of admission, victims those of the agent's own kernel over all nodes at once.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from engine.admission.asked_pod import PodParameters
from engine.admission.everywhere import victims_everywhere
from engine.admission.failures import WrongOS
from engine.admission.preemption import KUBELET
from engine.api.pod import Pod
from engine.api.qos import is_critical
from engine.api.quantity import ZERO
from engine.api.resources import pod_requests, scaled
from engine.plan.answers.answer import RESOURCE_UNITS, USED_AFTER, USED_BEFORE, Answer, Rows, coded
from engine.plan.placement.fit import Fit, NodeUse, fit, node_use
from engine.plan.questions.preempt_account import list_account
from engine.plan.questions.preempt_policy import short_nodes, victims_by_policy
from engine.plan.reading.requested_pods import requested_pods
from engine.plan.snapshot.columns import Snapshot
from engine.tables import CPU_ID, HAS_PRIORITY, MEMORY_ID, QOS_NAMES


class PreemptParameters(PodParameters, kw_only=True, forbid_unknown_fields=True):
    """Parameters of preempt."""

    policy: Annotated[
        Literal["kubelet", "priority", "minimal"],
        Meta(description="how victims are chosen: kubelet's way, lowest priorities, or fewest"),
    ] = "kubelet"
    victims: Annotated[bool, Meta(description="one row per victim, not only per node")] = True
    account: Annotated[
        bool,
        Meta(description="one row for each step of the search, and for each skipped pod, with the reason"),
    ] = False


def preempt(snapshot: Snapshot, parameters: PreemptParameters) -> Answer:
    """Return per node and pod `fits`, `preempt` (amount: victims), or `impossible` (amount: what is short).

    With victims, add `victim` per preempted pod (amount: its milli-CPU), and `frees` per node for cpu and
    memory, with the total requests of its pods before (`used-before`) and after (`used-after`), this pod
    included. With account, add `step` per victim in the order of choice, and `passed-over` per pod that
    stays.
    """
    rows = Rows(snapshot.node_names)
    pods = requested_pods(snapshot, parameters)
    use = node_use(snapshot)
    for pod in pods:
        _ask(rows, use, pod, parameters)
    unknown = int((~use.known).sum())
    if unknown:
        rows.note("nodes without a Node object: nothing fits there", unknown)
    return rows.answer(sort=len(pods) > 1 or parameters.victims or parameters.account)


def _ask(rows: Rows, use: NodeUse, pod: Pod, parameters: PreemptParameters) -> None:
    name = pod.metadata.name
    checked = fit(use, pod)
    short = np.asarray((checked.missing > 0).any(axis=0))
    refused = np.zeros(len(short), np.bool_)
    refused[list(checked.other)] = True
    fits = ~short & ~refused
    if not is_critical(pod) and not any(isinstance(f[0], WrongOS) for f in checked.other.values()):
        refused &= ~short
    rows.block(np.flatnonzero(fits), "fits", name, "", np.zeros(int(fits.sum()), np.int64), "pods")
    for node, failures in checked.other.items():
        if refused[node]:
            rows.add(node, "impossible", name, failures[0].reason, 0, "")
    tries = short & ~refused
    if not is_critical(pod):
        _impossible(rows, name, checked, tries, checked.missing, "only critical pods preempt")
        return
    needs = np.where(tries, checked.missing, 0)
    if parameters.policy == KUBELET:
        victims = victims_everywhere(use.tables, pod, checked.ids, needs, threads=use.threads)
        chosen_offsets, chosen, left = victims.offsets, victims.rows, victims.left
    else:
        chosen_offsets, chosen, left, unproven = victims_by_policy(
            use, pod, checked, needs, parameters.policy
        )
        if unproven:
            rows.note("nodes whose search was cut off: the best set found so far is used", unproven)
    counts = np.diff(chosen_offsets)
    stuck = np.asarray(tries & (left > 0).any(axis=0))
    _impossible(rows, name, checked, stuck, left, "even after preempting every pod that may be preempted")
    done = np.flatnonzero(tries & ~stuck)
    reasons = _first_short(checked, checked.missing[:, done])
    rows.block(done, "preempt", name, reasons, counts[done], "pods")
    if parameters.victims and len(chosen):
        _list_victims(rows, use, pod, chosen_offsets, chosen)
    if parameters.account:
        short_where = short_nodes(checked, needs)
        list_account(rows, use, pod, parameters.policy, short_where, chosen_offsets, chosen, stuck)


def _first_short(checked: Fit, missing: NDArray[np.int64]) -> pa.DictionaryArray:
    first = (missing > 0).argmax(axis=0).astype(np.int32)
    return coded(first, [f"OutOf{name}" for name in checked.resources])


def _impossible(
    rows: Rows, name: str, checked: Fit, where: NDArray[np.bool_], missing: NDArray[np.int64], why: str
) -> None:
    """Add one row per node, for the first resource that is short."""
    nodes = np.flatnonzero(where)
    first = (missing[:, nodes] > 0).argmax(axis=0)
    for index, resource in enumerate(checked.resources):
        mine = nodes[first == index]
        if len(mine):
            reason = f"OutOf{resource}: {why}"
            unit = RESOURCE_UNITS.get(resource, "pieces")
            rows.block(mine, "impossible", name, reason, missing[index, mine], unit)


def _list_victims(
    rows: Rows, use: NodeUse, pod: Pod, offsets: NDArray[np.int64], chosen: NDArray[np.int32]
) -> None:
    columns = use.tables.columns
    node = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    priority = columns.priority[chosen].astype(np.int64)
    given = (columns.flags[chosen] & HAS_PRIORITY) != 0
    # One number for each kind of victim, so that the words of a kind are written once for all its pods.
    kinds = pa.array(priority * 8 + columns.qos[chosen] * 2 + given).dictionary_encode()
    reasons = [
        f"{QOS_NAMES[kind >> 1 & 3]}, " + (f"priority {kind >> 3}" if kind & 1 else "no priority")
        for kind in kinds.dictionary.to_pylist()
    ]
    labels = use.snapshot.pod_labels(chosen.astype(np.int64))
    cpu = columns.ranking[CPU_ID][chosen]
    rows.block(node, "victim", labels, coded(kinds.indices.to_numpy(), reasons), cpu, "milli-CPU")
    hit = np.flatnonzero(np.diff(offsets))
    asked = pod_requests(pod)
    for resource, name, unit in ((CPU_ID, "cpu", "milli-CPU"), (MEMORY_ID, "memory", "bytes")):
        totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(columns.ranking[resource][chosen])])
        freed = totals[offsets[1:]] - totals[offsets[:-1]]
        rows.block(hit, "frees", name, "", freed[hit], unit)
        before, taken = use.used[resource], scaled(name, asked.get(name, ZERO))
        rows.block(hit, USED_BEFORE, name, "", before[hit], unit)
        rows.block(hit, USED_AFTER, name, "", (before - freed + taken)[hit], unit)
