"""Find whether workloads fit together, how many more copies of each fit, and what fits if nodes fail.

The workloads are scheduled as the scheduler does, the highest priority first. Then copies of each are added
until no node takes another one. For each failure, the pods of the failed nodes that a controller creates
again are scheduled on the other nodes before that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from engine.api.encoding.counts import counted
from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer, Rows
from engine.plan.placement.filters import has_scheduling_constraints, read_columns_ahead
from engine.plan.placement.node_capacity import template_requests
from engine.plan.placement.owners import bound_to_node, without_controller
from engine.plan.placement.scheduler import PodScheduler
from engine.plan.placement.topology import Undecidable
from engine.plan.reading.added import AddedPods, with_pods
from engine.plan.reading.requested_pods import pod_like, priority_of_class
from engine.plan.reading.workload_file import load_workloads
from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.node_labels import labels_of_nodes

ZONE: Final = "topology.kubernetes.io/zone"
NO_CONSTRAINTS: Final = (
    "the snapshot holds no taints, selectors, affinity or volumes of pods: by requests alone"
)
SINGLE: Final = "pods without a controller: they end with their node, and nothing creates them again"


class HeadroomParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of headroom: the workloads, and the failures to survive."""

    file: Annotated[
        list[str],
        Meta(description="manifests of pods, Deployments, StatefulSets, ReplicaSets or Jobs; several"),
    ] = []
    like: Annotated[
        list[str], Meta(description="namespace/name of existing pods: how many more of each fit")
    ] = []
    fail: Annotated[
        str,
        Meta(description="what may fail, one at a time: node, zone, or a label of nodes whose values fail"),
    ] = ""
    most: Annotated[int, Meta(ge=1, le=100_000, description="copies of a workload at most")] = 1000


@dataclass(frozen=True)
class _Failure:
    """Hold the consequence of a failure of `nodes`: pods that `moved` to other nodes, pods that are `lost`
    because they fit nowhere (with the first `reason`), and how many more copies of each workload fit then.
    """

    name: str
    nodes: list[int]
    moved: int
    lost: int
    reason: str
    more: tuple[int, ...]


def headroom(snapshot: Snapshot, parameters: HeadroomParameters) -> Answer:
    """Return rows `places` (amount: pods of a workload on a node), `no-place` (amount: pods of a workload
    that fit nowhere), `headroom` per workload (amount: how many more copies fit), and per failure `survives`
    (amount: how many more copies of a workload fit then) or `loses` (amount: pods that fit nowhere).
    """
    read_columns_ahead(snapshot)
    return _Headroom(snapshot, parameters).answer()


class _Headroom:
    """Compute one answer. The snapshot is extended by copies of the workloads that have no node at first.

    `_moved` maps a pod to the node that it has now, if that is not the one in the snapshot. Each element of
    `_undo_log` maps the pods that moved within a `_rolled_back` block to the nodes that they had before.
    """

    def __init__(self, snapshot: Snapshot, parameters: HeadroomParameters) -> None:
        self._parameters, self._whole = parameters, snapshot
        self._workloads = _workloads(snapshot, parameters)
        copies = [replace(one, count=one.count + parameters.most) for one in self._workloads]
        self._snapshot, self._copies = with_pods(snapshot, copies)
        self._rows = Rows([*snapshot.node_names, ""])
        self._cluster = snapshot.node_count
        if not has_scheduling_constraints(self._snapshot):
            self._rows.note(NO_CONSTRAINTS)
        self._scheduler = PodScheduler.over_all_nodes(self._snapshot, "scheduler")
        self._template: NDArray[np.int32] = self._snapshot.pods["template"].to_numpy()
        self._requests = template_requests(self._snapshot)
        self._moved: dict[int, int] = {}
        self._undo_log: list[dict[int, int]] = []

    @cached_property
    def _uncontrolled_and_bound(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return bool[placed] twice: the pods without a controller, and the daemon and static pods."""
        return without_controller(self._whole), bound_to_node(self._whole)

    def answer(self) -> Answer:
        """Schedule the workloads, then count copies, then let nodes fail; return the rows of all."""
        pods, left = self._schedule_workloads()
        more = tuple(self._count_more(number) for number in range(len(self._workloads)))
        for workload, (count, reason) in zip(self._workloads, more, strict=True):
            self._rows.add(self._cluster, "headroom", _label(workload), reason, count, "pods")
        failures = [self._fail(name, nodes) for name, nodes in self._failure_domains()]
        for failure in failures:
            self._add_failure(failure)
        if failures:
            uncontrolled, bound = self._uncontrolled_and_bound
            ending = int((uncontrolled & ~bound).sum())
            if ending:
                self._rows.note(SINGLE, ending)
        headline = self._headline(pods, left, [count for count, _ in more], failures)
        return replace(self._rows.answer(), headline=headline)

    def _schedule_workloads(self) -> tuple[int, int]:
        """Schedule the replicas of all workloads; return how many pods these are, and how many fit
        nowhere.
        """
        order = sorted(
            range(len(self._workloads)), key=lambda number: -(self._workloads[number].pod.spec.priority or 0)
        )
        total = left = 0
        for number in order:
            workload, rows = self._workloads[number], self._copies[number]
            places: Counter[int] = Counter()
            for place in range(workload.count):
                target, reason = self._schedule(rows[place])
                if target == NO_NODE:
                    # Replicas are equal: if one fits nowhere, the others do not fit either.
                    count = workload.count - place
                    self._rows.add(self._cluster, "no-place", _label(workload), reason, count, "pods")
                    left += count
                    break
                places[target] += 1
            for node, count in sorted(places.items()):
                reason = f"of {counted(workload.count, 'replica')}"
                self._rows.add(node, "places", _label(workload), reason, count, "pods")
            total += workload.count
        return total, left

    def _requested(self, row: int) -> NDArray[np.int64]:
        """Return int64[resources]: the requests of a pod."""
        amounts: NDArray[np.int64] = self._requests[self._template[row]]
        return amounts

    def _schedule(self, row: int) -> tuple[int, str]:
        """Schedule a pod that has no node; return the node, or -1 and the reason."""
        try:
            target, reason, _ = self._scheduler.schedule(row, NO_NODE, self._requested(row))
        except Undecidable as unknown:
            return NO_NODE, str(unknown)
        self._record_node(row, target)
        return target, reason

    def _node_of(self, row: int) -> int:
        """Return the current node of a pod, -1 for none."""
        if row in self._moved:
            return self._moved[row]
        offsets = self._whole.offsets
        return int(np.searchsorted(offsets, row, "right")) - 1 if row < offsets[-1] else NO_NODE

    def _pods_on(self, nodes: list[int]) -> NDArray[np.int64]:
        """Return the pods that are on some nodes now, in ascending order."""
        offsets, chosen = self._whole.offsets, set(nodes)
        unmoved = np.concatenate([np.arange(offsets[node], offsets[node + 1]) for node in nodes])
        unmoved = unmoved[~np.isin(unmoved, list(self._moved))]
        moved = [row for row, node in self._moved.items() if node in chosen]
        return np.sort(np.concatenate([unmoved, np.array(moved, np.int64)]))

    def _record_node(self, row: int, node: int) -> None:
        """Record the new node of a pod, and its earlier one for the innermost `_rolled_back` block."""
        if self._undo_log:
            self._undo_log[-1].setdefault(row, self._node_of(row))
        self._moved[row] = node

    def _count_more(self, number: int) -> tuple[int, str]:
        """Return how many more copies of a workload fit, and the reason against one more."""
        rows = self._copies[number][self._workloads[number].count :]
        with self._rolled_back():
            for place, row in enumerate(rows):
                target, reason = self._schedule(row)
                if target == NO_NODE:
                    return place, f"then {reason}"
        return len(rows), "as many as were asked for (most)"

    @contextmanager
    def _rolled_back(self) -> Iterator[None]:
        """Move all pods that move within the block back at its end."""
        self._undo_log.append({})
        try:
            yield
        finally:
            before = self._undo_log.pop()
            # All pods are removed before one is added: no node has two pods with one host port in between.
            for row in before:
                if self._moved[row] != NO_NODE:
                    self._scheduler.remove_pod(row, self._moved[row], self._requested(row))
            for row, node in before.items():
                if node != NO_NODE:
                    self._scheduler.add_pod(row, node, self._requested(row))
                self._moved[row] = node

    def _failure_domains(self) -> list[tuple[str, list[int]]]:
        """Return the name and the nodes of each failure. Raise `InvalidInput` for a label that no node
        has.
        """
        fail, names = self._parameters.fail, self._snapshot.node_names
        if not fail:
            return []
        if fail == "node":
            return [(f"node {name}", [node]) for node, name in enumerate(names)]
        key = ZONE if fail == "zone" else fail
        domains, values = labels_of_nodes(self._snapshot).values_of(key)
        if not values:
            raise InvalidInput(f"no node has the label {key}", subject="fail")
        return [
            (f"{fail} {value}", np.flatnonzero(domains == domain).tolist())
            for domain, value in enumerate(values)
        ]

    def _fail(self, name: str, nodes: list[int]) -> _Failure:
        """Reschedule the pods of failed nodes, and count how many more copies fit then."""
        capacity = self._scheduler.capacity
        open_before = capacity.open.copy()
        capacity.open[nodes] = False
        with self._rolled_back():
            leaving = self._pods_on(nodes)
            leaving = leaving[~self._ends_with_node(leaving)]
            priority: NDArray[np.int32] = self._snapshot.pods["priority"].to_numpy()
            leaving = leaving[np.argsort(-priority[leaving].astype(np.int64), kind="stable")]
            for row in leaving.tolist():
                self._scheduler.remove_pod(row, self._node_of(row), self._requested(row))
                self._record_node(row, NO_NODE)
            results = [self._schedule(row) for row in leaving.tolist()]
            reasons = [reason for target, reason in results if target == NO_NODE]
            more = tuple(self._count_more(number)[0] for number in range(len(self._workloads)))
        capacity.open[:] = open_before
        moved, lost = len(leaving) - len(reasons), len(reasons)
        return _Failure(name, nodes, moved, lost, reasons[0] if reasons else "", more)

    def _ends_with_node(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return bool[n]: whether a pod ends with its node. Copies of workloads have a controller."""
        found = np.zeros(len(rows), bool)
        uncontrolled, bound = self._uncontrolled_and_bound
        existing = rows < len(uncontrolled)
        found[existing] = (uncontrolled | bound)[rows[existing]]
        return found

    def _add_failure(self, failure: _Failure) -> None:
        node = failure.nodes[0] if len(failure.nodes) == 1 else self._cluster
        if failure.lost:
            self._rows.add(node, "loses", failure.name, failure.reason, failure.lost, "pods")
            return
        for workload, count in zip(self._workloads, failure.more, strict=True):
            reason = f"of {_label(workload)}, after {counted(failure.moved, 'pod')} moved"
            self._rows.add(node, "survives", failure.name, reason, count, "pods")

    def _headline(self, pods: int, left: int, more: Sequence[int], failures: Sequence[_Failure]) -> str:
        """Return the answer as a sentence: what fits, how many more, and the worst failure."""
        labels = [_label(one) for one in self._workloads]
        parts = []
        if pods:
            fit = f"all {pods:,} pods fit" if not left else f"{pods - left:,} of {pods:,} pods fit"
            parts.append(fit if pods > 1 or left else "the pod fits")
        parts.append(
            ", ".join(f"{count:,} more of {label}" for count, label in zip(more, labels, strict=True))
        )
        text = "; ".join(parts)
        text = f"{text[0].upper()}{text[1:]}."
        if not failures:
            return text
        losing = [one for one in failures if one.lost]
        kind = self._parameters.fail
        if losing:
            worst = max(losing, key=lambda one: one.lost)
            return (
                f"{text} {len(losing):,} of {counted(len(failures), kind)} cannot fail without pods losing "
                f"their place: {counted(worst.lost, 'pod')} if {worst.name} fails."
            )
        least = [min(failures, key=lambda one: one.more[number]) for number in range(len(labels))]
        fits = ", ".join(
            f"{one.more[number]:,} more of {labels[number]} fit then ({one.name} is the worst)"
            for number, one in enumerate(least)
        )
        return f"{text} If any one {kind} fails, all pods have a place, and {fits}."


def _workloads(snapshot: Snapshot, parameters: HeadroomParameters) -> list[AddedPods]:
    """Return the workloads of the parameters. Raise `InvalidInput` that names the file and the field."""
    if not parameters.file and not parameters.like:
        raise InvalidInput("name manifests, or existing pods with like", subject="file")
    found = [one for path in parameters.file for one in load_workloads(Path(path))]
    for label in parameters.like:
        pod, owner = pod_like(snapshot, label)
        found.append(AddedPods(pod, 0, owner))
    for one in found:
        if one.pod.spec.priority is None and one.pod.spec.priority_class_name:
            one.pod.spec.priority = priority_of_class(snapshot, one.pod.spec.priority_class_name)
        one.pod.spec.node_name = ""
    return found


def _label(workload: AddedPods) -> str:
    return f"{workload.pod.metadata.namespace or 'default'}/{workload.pod.metadata.name}"
