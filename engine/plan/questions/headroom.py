"""Find whether workloads fit together, how many more of each do, and what is left if a part of the cluster
fails.

The workloads are placed as the scheduler would, the highest priority first. Then each is repeated until no
node takes another copy. For each failure, the pods of the failed nodes that a controller creates again go to
the other nodes first.
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
from engine.plan.placement.filters import has_scheduling_constraints
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
class _Loss:
    """Tell what a failure leaves: pods of failed nodes that `moved`, pods that got no node with the first
    reason, and how many more of each workload fit then.
    """

    name: str
    nodes: list[int]
    moved: int
    lost: int
    why: str
    more: tuple[int, ...]


def headroom(snapshot: Snapshot, parameters: HeadroomParameters) -> Answer:
    """Return rows `places` (amount: pods of a workload on a node), `no-place` (amount: pods of a workload
    that no node takes), `headroom` per workload (amount: how many more fit), and per failure `survives`
    (amount: how many more of a workload fit then) or `loses` (amount: pods that get no node).
    """
    return _Headroom(snapshot, parameters).answer()


class _Headroom:
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
        self._before: list[dict[int, int]] = []

    @cached_property
    def _owned(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return bool[placed] each: pods that nothing creates again, and those that no other node takes."""
        return without_controller(self._whole), bound_to_node(self._whole)

    def answer(self) -> Answer:
        pods, left = self._mix()
        more = tuple(self._more(number) for number in range(len(self._workloads)))
        for workload, (count, why) in zip(self._workloads, more, strict=True):
            self._rows.add(self._cluster, "headroom", _label(workload), why, count, "pods")
        losses = [self._lose(name, nodes) for name, nodes in self._failures()]
        for loss in losses:
            self._add(loss)
        if losses:
            single, pinned = self._owned
            ending = int((single & ~pinned).sum())
            if ending:
                self._rows.note(SINGLE, ending)
        headline = self._headline(pods, left, [count for count, _ in more], losses)
        return replace(self._rows.answer(), headline=headline)

    def _mix(self) -> tuple[int, int]:
        """Place the replicas of all workloads; return how many pods there are, and how many have no node."""
        order = sorted(
            range(len(self._workloads)), key=lambda number: -(self._workloads[number].pod.spec.priority or 0)
        )
        total = left = 0
        for number in order:
            workload, rows = self._workloads[number], self._copies[number]
            places: Counter[int] = Counter()
            for place in range(workload.count):
                target, why = self._place(rows[place])
                if target == NO_NODE:
                    # Replicas are equal: if one has no place, the rest has none.
                    count = workload.count - place
                    self._rows.add(self._cluster, "no-place", _label(workload), why, count, "pods")
                    left += count
                    break
                places[target] += 1
            for node, count in sorted(places.items()):
                said = f"of {counted(workload.count, 'replica')}"
                self._rows.add(node, "places", _label(workload), said, count, "pods")
            total += workload.count
        return total, left

    def _requested(self, row: int) -> NDArray[np.int64]:
        """Return int64[resources]: the requests of a pod."""
        amounts: NDArray[np.int64] = self._requests[self._template[row]]
        return amounts

    def _place(self, row: int) -> tuple[int, str]:
        try:
            target, why, _ = self._scheduler.schedule(row, NO_NODE, self._requested(row))
        except Undecidable as unknown:
            return NO_NODE, str(unknown)
        self._book(row, target)
        return target, why

    def _node_of(self, row: int) -> int:
        """Return the node of a pod, -1 for none."""
        if row in self._moved:
            return self._moved[row]
        offsets = self._whole.offsets
        return int(np.searchsorted(offsets, row, "right")) - 1 if row < offsets[-1] else NO_NODE

    def _on(self, nodes: list[int]) -> NDArray[np.int64]:
        """Return the pods on some nodes, in ascending order."""
        offsets, chosen = self._whole.offsets, set(nodes)
        there = np.concatenate([np.arange(offsets[node], offsets[node + 1]) for node in nodes])
        there = there[~np.isin(there, list(self._moved))]
        came = [row for row, node in self._moved.items() if node in chosen]
        return np.sort(np.concatenate([there, np.array(came, np.int64)]))

    def _book(self, row: int, node: int) -> None:
        if self._before:
            self._before[-1].setdefault(row, self._node_of(row))
        self._moved[row] = node

    def _more(self, number: int) -> tuple[int, str]:
        """Return how many more copies of a workload fit, and why not one more; nothing stays placed."""
        rows = self._copies[number][self._workloads[number].count :]
        with self._undone():
            for place, row in enumerate(rows):
                target, why = self._place(row)
                if target == NO_NODE:
                    return place, f"then {why}"
        return len(rows), "as many as were asked for (most)"

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Take back all moves at the end."""
        self._before.append({})
        try:
            yield
        finally:
            before = self._before.pop()
            for row in before:
                if self._moved[row] != NO_NODE:
                    self._scheduler.remove_pod(row, self._moved[row], self._requested(row))
            for row, node in before.items():
                if node != NO_NODE:
                    self._scheduler.add_pod(row, node, self._requested(row))
                self._moved[row] = node

    def _failures(self) -> list[tuple[str, list[int]]]:
        """Return the name and nodes of each failure. Raise `InvalidInput` for a label that no node has."""
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

    def _lose(self, name: str, nodes: list[int]) -> _Loss:
        """Move the pods of failed nodes, and count what fits then."""
        capacity = self._scheduler.capacity
        was = capacity.open.copy()
        capacity.open[nodes] = False
        with self._undone():
            leaving = self._on(nodes)
            leaving = leaving[~self._ends_with_node(leaving)]
            priority: NDArray[np.int32] = self._snapshot.pods["priority"].to_numpy()
            leaving = leaving[np.argsort(-priority[leaving].astype(np.int64), kind="stable")]
            for row in leaving.tolist():
                self._scheduler.remove_pod(row, self._node_of(row), self._requested(row))
                self._book(row, NO_NODE)
            reasons = [
                why for row in leaving.tolist() for target, why in (self._place(row),) if target == NO_NODE
            ]
            more = tuple(self._more(number)[0] for number in range(len(self._workloads)))
        capacity.open[:] = was
        moved, lost = len(leaving) - len(reasons), len(reasons)
        return _Loss(name, nodes, moved, lost, reasons[0] if reasons else "", more)

    def _ends_with_node(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        found = np.zeros(len(rows), bool)
        single, pinned = self._owned
        old = rows < len(single)
        found[old] = (single | pinned)[rows[old]]
        return found

    def _add(self, loss: _Loss) -> None:
        node = loss.nodes[0] if len(loss.nodes) == 1 else self._cluster
        if loss.lost:
            self._rows.add(node, "loses", loss.name, loss.why, loss.lost, "pods")
            return
        for workload, count in zip(self._workloads, loss.more, strict=True):
            said = f"of {_label(workload)}, after {counted(loss.moved, 'pod')} moved"
            self._rows.add(node, "survives", loss.name, said, count, "pods")

    def _headline(self, pods: int, left: int, more: Sequence[int], losses: Sequence[_Loss]) -> str:
        labels = [_label(one) for one in self._workloads]
        parts = []
        if pods:
            fit = f"all {pods:,} pods fit" if not left else f"{pods - left:,} of {pods:,} pods fit"
            parts.append(fit if pods > 1 or left else "the pod fits")
        parts.append(
            ", ".join(f"{count:,} more of {label}" for count, label in zip(more, labels, strict=True))
        )
        said = "; ".join(parts)
        said = f"{said[0].upper()}{said[1:]}."
        if not losses:
            return said
        losing = [one for one in losses if one.lost]
        kind = self._parameters.fail
        if losing:
            worst = max(losing, key=lambda one: one.lost)
            return (
                f"{said} {len(losing):,} of {counted(len(losses), kind)} cannot fail without pods losing "
                f"their place: {counted(worst.lost, 'pod')} if {worst.name} fails."
            )
        least = [min(losses, key=lambda one: one.more[number]) for number in range(len(labels))]
        kept = ", ".join(
            f"{one.more[number]:,} more of {labels[number]} fit then ({one.name} is the worst)"
            for number, one in enumerate(least)
        )
        return f"{said} If any one {kind} fails, all pods have a place, and {kept}."


def _workloads(snapshot: Snapshot, parameters: HeadroomParameters) -> list[AddedPods]:
    """Return the workloads asked about. Raise `InvalidInput` naming the file and the field."""
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
