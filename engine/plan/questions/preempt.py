"""Compute for every node whether a pod fits, which pods it preempts there, or why the node rejects it.

This is the kubelet's preemption for critical pods. Failures are those of its admission, and victims those of
the agent's own kernel, which examines all nodes at once.
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
from engine.plan.questions.preempt_account import add_account
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
    """Return per node and pod `fits`, `preempt` (amount: number of victims), or `impossible` (amount: how
    much is missing of the first resource that is short).

    With `victims`, add `victim` per preempted pod (amount: its milli-CPU), and per node the cpu and memory
    that the victims free (`frees`), and the requests on the node before (`used-before`) and after
    (`used-after`), this pod included. With `account`, add `step` per victim in the order of choice, and
    `passed-over` per pod that stays.
    """
    rows = Rows(snapshot.node_names)
    pods = requested_pods(snapshot, parameters)
    use = node_use(snapshot)
    for pod in pods:
        _add_pod(rows, use, pod, parameters)
    unknown = int((~use.known).sum())
    if unknown:
        rows.note("nodes without a Node object: nothing fits there", unknown)
    return rows.answer(sort=len(pods) > 1 or parameters.victims or parameters.account)


def _add_pod(rows: Rows, use: NodeUse, pod: Pod, parameters: PreemptParameters) -> None:
    """Add the rows of one pod on all nodes."""
    name = pod.metadata.name
    checked = fit(use, pod)
    short = np.asarray((checked.missing > 0).any(axis=0))
    refused = np.zeros(len(short), np.bool_)
    refused[list(checked.other)] = True
    fits = ~short & ~refused
    # As in the kubelet, the first failure is the reason. Amounts are compared before everything but the OS,
    # and a critical pod is refused for the other failures before any preemption.
    if not is_critical(pod) and not any(isinstance(f[0], WrongOS) for f in checked.other.values()):
        refused &= ~short
    rows.block(np.flatnonzero(fits), "fits", name, "", np.zeros(int(fits.sum()), np.int64), "pods")
    for node, failures in checked.other.items():
        if refused[node]:
            rows.add(node, "impossible", name, failures[0].reason, 0, "")
    tries = short & ~refused
    if not is_critical(pod):
        _add_impossible(rows, name, checked, tries, checked.missing, "only critical pods preempt")
        return
    needs = np.where(tries, checked.missing, 0)
    if parameters.policy == KUBELET:
        victims = victims_everywhere(use.tables, pod, checked.ids, needs, threads=use.threads)
        offsets, chosen, left = victims.offsets, victims.rows, victims.left
    else:
        offsets, chosen, left, unproven = victims_by_policy(use, pod, checked, needs, parameters.policy)
        if unproven:
            rows.note("nodes whose search was cut off: the best set found so far is used", unproven)
    counts = np.diff(offsets)
    stuck = np.asarray(tries & (left > 0).any(axis=0))
    _add_impossible(rows, name, checked, stuck, left, "even after preempting every pod that may be preempted")
    relieved = np.flatnonzero(tries & ~stuck)
    reasons = _first_short(checked, checked.missing[:, relieved])
    rows.block(relieved, "preempt", name, reasons, counts[relieved], "pods")
    if parameters.victims and len(chosen):
        _add_victims(rows, use, pod, offsets, chosen)
    if parameters.account:
        nodes = short_nodes(checked, needs)
        add_account(rows, use, pod, parameters.policy, nodes, offsets, chosen, stuck)


def _first_short(checked: Fit, missing: NDArray[np.int64]) -> pa.DictionaryArray:
    """Return for each node the reason OutOf with the first resource that is missing there."""
    first = (missing > 0).argmax(axis=0).astype(np.int32)
    return coded(first, [f"OutOf{name}" for name in checked.resources])


def _add_impossible(
    rows: Rows, name: str, checked: Fit, mask: NDArray[np.bool_], missing: NDArray[np.int64], why: str
) -> None:
    """Add a row for each node in `mask`, bool[nodes], with the first resource that is short there."""
    nodes = np.flatnonzero(mask)
    first = (missing[:, nodes] > 0).argmax(axis=0)
    for index, resource in enumerate(checked.resources):
        short_of_it = nodes[first == index]
        if len(short_of_it):
            reason = f"OutOf{resource}: {why}"
            unit = RESOURCE_UNITS.get(resource, "pieces")
            rows.block(short_of_it, "impossible", name, reason, missing[index, short_of_it], unit)


def _add_victims(
    rows: Rows, use: NodeUse, pod: Pod, offsets: NDArray[np.int64], chosen: NDArray[np.int32]
) -> None:
    """Add a row for each victim, and for each node what its victims free.

    The victims of node i are rows `chosen[offsets[i]:offsets[i + 1]]`.
    """
    columns = use.tables.columns
    node = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    priority = columns.priority[chosen].astype(np.int64)
    has_priority = (columns.flags[chosen] & HAS_PRIORITY) != 0
    # One number for each kind of victim, so that the text of a kind is made once for all its pods.
    kinds = pa.array(priority * 8 + columns.qos[chosen] * 2 + has_priority).dictionary_encode()
    reasons = [
        f"{QOS_NAMES[kind >> 1 & 3]}, " + (f"priority {kind >> 3}" if kind & 1 else "no priority")
        for kind in kinds.dictionary.to_pylist()
    ]
    labels = use.snapshot.pod_labels(chosen.astype(np.int64))
    cpu = columns.ranking[CPU_ID][chosen]
    rows.block(node, "victim", labels, coded(kinds.indices.to_numpy(), reasons), cpu, "milli-CPU")
    nodes = np.flatnonzero(np.diff(offsets))
    requests = pod_requests(pod)
    for resource, name, unit in ((CPU_ID, "cpu", "milli-CPU"), (MEMORY_ID, "memory", "bytes")):
        totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(columns.ranking[resource][chosen])])
        freed = totals[offsets[1:]] - totals[offsets[:-1]]
        rows.block(nodes, "frees", name, "", freed[nodes], unit)
        before, added = use.used[resource], scaled(name, requests.get(name, ZERO))
        rows.block(nodes, USED_BEFORE, name, "", before[nodes], unit)
        rows.block(nodes, USED_AFTER, name, "", (before - freed + added)[nodes], unit)
