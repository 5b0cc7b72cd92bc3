"""Explain why pods are pending, and find the node groups that would have to grow for them.

A pod is pending if the scheduler's filters leave no node that has its requests. A node group is made of the
nodes with one value of a label, in one zone: a new node is like an existing one without the pods that are not
daemons. Groups grow one node after another, by the group that takes the most pods, then the cheapest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from engine.api.encoding.counts import counted
from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer, Rows
from engine.plan.placement.consolidate import CONTROL_PLANE
from engine.plan.placement.filters import has_scheduling_constraints
from engine.plan.placement.node_capacity import request_matrix
from engine.plan.placement.owners import of_daemon_sets
from engine.plan.placement.scheduler import PodScheduler
from engine.plan.placement.topology import Undecidable
from engine.plan.reading.added import with_nodes
from engine.plan.snapshot.columns import NO_NODE, Snapshot
from engine.plan.snapshot.objects import node_object

ZONE: Final = "topology.kubernetes.io/zone"
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
GROUP_LABELS: Final = (
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "karpenter.sh/nodepool",
    INSTANCE_TYPE,
)
"""Labels that name a node's group; the first one that a node has counts."""
NO_CONSTRAINTS: Final = (
    "the snapshot holds no taints, selectors, affinity or volumes of pods: by requests alone"
)


class PendingParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of pending."""

    group_by: Annotated[
        str,
        Meta(description="label that names a node's group  [default: the provider's, or the instance type]"),
    ] = ""
    prices: Annotated[
        dict[str, float], Meta(description="price of a node by instance type: m5.large=70,m5.xlarge=140")
    ] = {}
    most: Annotated[int, Meta(ge=1, le=5000, description="new nodes of a group at most")] = 100


@dataclass(frozen=True)
class NodeGroup:
    """Hold a group by its name, the instance type, and the node that a new one is like."""

    name: str
    kind: str
    like: int


@dataclass(frozen=True)
class GroupGrowth:
    """Tell how many new nodes of a group take which pods, and why it takes the others not."""

    group: NodeGroup
    nodes: int
    pods: tuple[int, ...]
    refused: Mapping[int, str]


def pending(snapshot: Snapshot, parameters: PendingParameters) -> Answer:
    """Return rows `pending` (why no node takes a pod), `binds` (a node would take it now), `option` per group
    that would take some of them (amount: nodes), `grow` for the groups that are needed, `no-group` for pods
    that no group takes, and `unknown` if the snapshot lacks what the decision needs.
    """
    return _Pending(snapshot, parameters).answer()


class _Pending:
    def __init__(self, snapshot: Snapshot, parameters: PendingParameters) -> None:
        self._snapshot, self._parameters = snapshot, parameters
        self._rows = Rows([*snapshot.node_names, ""])
        self._cluster = snapshot.node_count
        if not has_scheduling_constraints(snapshot):
            self._rows.note(NO_CONSTRAINTS)
        self._groups = _node_groups(snapshot, parameters.group_by)

    def answer(self) -> Answer:
        waiting = self._place_now()
        left, grown = dict(waiting), list[GroupGrowth]()
        options = [self._growth(group, list(left)) for group in self._groups] if left else []
        for one in sorted(options, key=self._preference):
            if one.pods:
                self._add("option", one)
        while left:
            best = min((one for one in options if one.pods), key=self._preference, default=None)
            if best is None:
                break
            grown.append(best)
            self._add("grow", best)
            left = {row: why for row, why in left.items() if row not in best.pods}
            options = [self._growth(one.group, list(left)) for one in options if one.group != best.group]
        for row in left:
            self._rows.add(
                self._cluster, "no-group", self._snapshot.pod_label(row), self._refusal(row), 1, "pods"
            )
        answer = self._rows.answer()
        return replace(answer, headline=self._headline(len(waiting), grown, len(left)))

    def _place_now(self) -> dict[int, str]:
        """Return why no node takes each pending pod; add rows for all."""
        snapshot, rows = self._snapshot, self._rows
        phases = snapshot.pods["phase"].slice(snapshot.placed).to_pylist()
        pods = [snapshot.placed + place for place, phase in enumerate(phases) if phase in ("Pending", "")]
        scheduler = PodScheduler.over_all_nodes(snapshot, "scheduler")
        requests = request_matrix(snapshot, np.array(pods, np.int64))
        priority: NDArray[np.int32] = snapshot.pods["priority"].to_numpy()
        waiting = {}
        for place in sorted(range(len(pods)), key=lambda place: -int(priority[pods[place]])):
            row = pods[place]
            label = snapshot.pod_label(row)
            try:
                found = scheduler.schedule(row, NO_NODE, requests[place])
            except Undecidable as unknown:
                rows.add(self._cluster, "unknown", label, str(unknown), 1, "pods")
                continue
            if found.node != NO_NODE:
                rows.add(found.node, "binds", label, "a node would take it now", 1, "pods")
                continue
            waiting[row] = found.reason
            rows.add(self._cluster, "pending", label, found.reason, 1, "pods")
        return waiting

    def _growth(self, group: NodeGroup, pods: Sequence[int]) -> GroupGrowth:
        """Add nodes of a group, one at a time, while they take pods."""
        snapshot = self._snapshot
        # Every pod fits on a new node of its own, or on none.
        count = min(self._parameters.most, len(pods))
        if not count:
            return GroupGrowth(group, 0, (), {})
        larger = with_nodes(snapshot, group.like, count, _daemons(snapshot, group.like))
        scheduler = PodScheduler.over_all_nodes(larger, "pack")
        scheduler.capacity.open[:] = False
        requests = request_matrix(snapshot, np.array(pods, np.int64))
        used, taken, refused = 0, list[int](), dict[int, str]()
        for row, request in zip(pods, requests, strict=True):
            found = self._placed(scheduler, row, request)
            if found == NO_NODE and used < count:
                scheduler.capacity.open[snapshot.node_count + used] = True
                found = self._placed(scheduler, row, request)
                if found == NO_NODE:
                    refused[row] = self._why
                    scheduler.capacity.open[snapshot.node_count + used] = False
                else:
                    used += 1
            if found != NO_NODE:
                taken.append(row)
        return GroupGrowth(group, used, tuple(taken), refused)

    def _placed(self, scheduler: PodScheduler, row: int, request: NDArray[np.int64]) -> int:
        try:
            found = scheduler.schedule(row, NO_NODE, request)
        except Undecidable as unknown:
            self._why = str(unknown)
            return NO_NODE
        self._why = found.reason
        return found.node

    def _preference(self, one: GroupGrowth) -> tuple[int, float, int, str]:
        price = self._parameters.prices.get(one.group.kind, 0.0)
        return -len(one.pods), price * one.nodes, one.nodes, one.group.name

    def _refusal(self, row: int) -> str:
        """Explain for each node group why its new nodes would not fit a pod."""
        said: Counter[str] = Counter()
        for group in self._groups:
            growth = self._growth(group, [row])
            said[growth.refused.get(row, "").removeprefix("no node of 1: 1 ")] += 1
        if not said:
            return "no node group to grow"
        return "; ".join(f"{counted(count, 'group')} {why}" for why, count in said.items())

    def _add(self, decision: str, one: GroupGrowth) -> None:
        labels = [self._snapshot.pod_label(row) for row in one.pods[:3]]
        more = f" and {len(one.pods) - 3} more" if len(one.pods) > 3 else ""
        cost = self._cost(one)
        reason = f"for {', '.join(labels)}{more}{f', {cost:,.2f}' if cost is not None else ''}"
        self._rows.add(self._cluster, decision, one.group.name, reason, one.nodes, "nodes")

    def _cost(self, one: GroupGrowth) -> float | None:
        prices = self._parameters.prices
        if not prices:
            return None
        if one.group.kind not in prices:
            self._rows.notes[f"instance types without a price: {one.group.kind or 'without a type'}"] = 0
            return None
        return prices[one.group.kind] * one.nodes

    def _headline(self, waiting: int, grown: list[GroupGrowth], left: int) -> str:
        if not waiting:
            return "No pod is pending for want of a node."
        helped = sum(len(one.pods) for one in grown)
        parts = [f"{counted(waiting, 'pod')} pending for want of a node"]
        if grown:
            nodes = ", ".join(f"{counted(one.nodes, 'node')} more of {one.group.name}" for one in grown)
            costs = [cost for one in grown if (cost := self._cost(one)) is not None]
            price = f" ({sum(costs):,.2f})" if costs else ""
            parts.append(f"{helped} would run with {nodes}{price}")
        if left:
            parts.append(f"no node group takes {left}")
        return "; ".join(parts) + "."


def _node_groups(snapshot: Snapshot, label: str) -> list[NodeGroup]:
    """Return the groups; a ready node of each stands for a new one. Raise `InvalidInput` for a label that no
    node has.
    """
    ready = snapshot.nodes["ready"].fill_null(True).to_pylist()
    found: dict[str, NodeGroup] = {}
    for node in range(snapshot.node_count):
        labels = node_object(snapshot, node).labels
        key = label or next((one for one in GROUP_LABELS if one in labels), "")
        if key not in labels or CONTROL_PLANE in labels or not ready[node]:
            continue
        zone = labels.get(ZONE, "")
        name = f"{labels[key]} in {zone}" if zone else labels[key]
        found.setdefault(name, NodeGroup(name, labels.get(INSTANCE_TYPE, ""), node))
    if label and not found:
        raise InvalidInput(f"no ready node has the label {label}", subject="group_by")
    return list(found.values())


def _daemons(snapshot: Snapshot, node: int) -> dict[str, int]:
    """Return what the daemons of a node take of it."""
    first, last = int(snapshot.offsets[node]), int(snapshot.offsets[node + 1])
    rows = first + np.flatnonzero(of_daemon_sets(snapshot)[first:last])
    sums = request_matrix(snapshot, rows).sum(axis=0)
    return dict(zip(snapshot.resources.names, sums.tolist(), strict=True)) | {"pods": len(rows)}
