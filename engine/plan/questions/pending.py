"""Explain why pods are pending, and find the node groups that would have to grow for them.

A pod is pending if no node passes the scheduler's filters and has its requests. A node group consists of the
nodes of one zone that have the same value of a label. A new node is like an existing one that runs its daemon
pods only. The group that takes the most pods grows first; of groups that take equally many, the cheapest.
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
"""Labels that name the group of a node. The first one that a node has counts."""
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
    """Hold the name of a group, its instance type, and the existing node that a new one is like."""

    name: str
    instance_type: str
    like: int


@dataclass(frozen=True)
class GroupGrowth:
    """Hold how many new nodes of a group take which pods, and the reason for each pod that they refuse."""

    group: NodeGroup
    nodes: int
    pods: tuple[int, ...]
    refused: Mapping[int, str]


def pending(snapshot: Snapshot, parameters: PendingParameters) -> Answer:
    """Return rows `pending` (reason: why no node takes the pod), `binds` (a node would take the pod now) or
    `unknown` (the snapshot lacks data for the decision) per pod; `option` per group that would take some of
    the pods (amount: new nodes), `grow` for the groups that have to grow, and `no-group` for pods that no
    group takes.
    """
    return _Pending(snapshot, parameters).answer()


class _Pending:
    """Compute one answer."""

    def __init__(self, snapshot: Snapshot, parameters: PendingParameters) -> None:
        self._snapshot, self._parameters = snapshot, parameters
        self._rows = Rows([*snapshot.node_names, ""])
        self._cluster = snapshot.node_count
        if not has_scheduling_constraints(snapshot):
            self._rows.note(NO_CONSTRAINTS)
        self._groups = _node_groups(snapshot, parameters.group_by)

    def answer(self) -> Answer:
        """Schedule the pods that have no node, then grow groups for those that fit nowhere."""
        pending_pods = self._schedule_now()
        left, grown = list(pending_pods), list[GroupGrowth]()
        options = [self._grow(group, left) for group in self._groups] if left else []
        for one in sorted(options, key=self._preference):
            if one.pods:
                self._add_growth("option", one)
        while left:
            best = min((one for one in options if one.pods), key=self._preference, default=None)
            if best is None:
                break
            grown.append(best)
            self._add_growth("grow", best)
            left = [row for row in left if row not in best.pods]
            # The other groups start again from no new node: a part of their pods has a node now.
            options = [self._grow(one.group, left) for one in options if one.group != best.group]
        for row in left:
            label = self._snapshot.pod_label(row)
            self._rows.add(self._cluster, "no-group", label, self._refusal(row), 1, "pods")
        answer = self._rows.answer()
        return replace(answer, headline=self._headline(len(pending_pods), grown, len(left)))

    def _schedule_now(self) -> list[int]:
        """Schedule all pods without a node, the highest priority first, and add a row for each; return those
        that fit nowhere.
        """
        snapshot, rows = self._snapshot, self._rows
        phases = snapshot.pods["phase"].slice(snapshot.placed).to_pylist()
        pods = [snapshot.placed + place for place, phase in enumerate(phases) if phase in ("Pending", "")]
        scheduler = PodScheduler.over_all_nodes(snapshot, "scheduler")
        requests = request_matrix(snapshot, np.array(pods, np.int64))
        priority: NDArray[np.int32] = snapshot.pods["priority"].to_numpy()
        pending_pods = []
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
            pending_pods.append(row)
            rows.add(self._cluster, "pending", label, found.reason, 1, "pods")
        return pending_pods

    def _grow(self, group: NodeGroup, pods: Sequence[int]) -> GroupGrowth:
        """Add nodes of a group, one at a time, as long as each takes at least one of the pods."""
        snapshot = self._snapshot
        # Every pod fits on a new node of its own, or on none.
        count = min(self._parameters.most, len(pods))
        if not count:
            return GroupGrowth(group, 0, (), {})
        larger = with_nodes(snapshot, group.like, count, _daemon_requests(snapshot, group.like))
        scheduler = PodScheduler.over_all_nodes(larger, "pack")
        scheduler.capacity.open[:] = False
        requests = request_matrix(snapshot, np.array(pods, np.int64))
        used, taken, refused = 0, list[int](), dict[int, str]()
        for row, request in zip(pods, requests, strict=True):
            node, _ = _schedule(scheduler, row, request)
            if node == NO_NODE and used < count:
                scheduler.capacity.open[snapshot.node_count + used] = True
                node, reason = _schedule(scheduler, row, request)
                if node == NO_NODE:
                    refused[row] = reason
                    scheduler.capacity.open[snapshot.node_count + used] = False
                else:
                    used += 1
            if node != NO_NODE:
                taken.append(row)
        return GroupGrowth(group, used, tuple(taken), refused)

    def _preference(self, one: GroupGrowth) -> tuple[int, float, int, str]:
        """Return a key by which groups are preferred, the least first: most pods, lowest cost, fewest
        nodes.
        """
        price = self._parameters.prices.get(one.group.instance_type, 0.0)
        return -len(one.pods), price * one.nodes, one.nodes, one.group.name

    def _refusal(self, row: int) -> str:
        """Explain why no group takes a pod: each reason, with the number of groups to which it applies."""
        reasons: Counter[str] = Counter()
        for group in self._groups:
            growth = self._grow(group, [row])
            # Each group was tried with one new node, which the reason need not mention.
            reasons[growth.refused.get(row, "").removeprefix("no node of 1: 1 ")] += 1
        if not reasons:
            return "no node group to grow"
        return "; ".join(f"{counted(count, 'group')} {reason}" for reason, count in reasons.items())

    def _add_growth(self, decision: str, one: GroupGrowth) -> None:
        """Add a row for a group with its first pods and its cost."""
        labels = [self._snapshot.pod_label(row) for row in one.pods[:3]]
        more = f" and {len(one.pods) - 3} more" if len(one.pods) > 3 else ""
        cost = self._cost(one)
        reason = f"for {', '.join(labels)}{more}{f', {cost:,.2f}' if cost is not None else ''}"
        self._rows.add(self._cluster, decision, one.group.name, reason, one.nodes, "nodes")

    def _cost(self, one: GroupGrowth) -> float | None:
        """Return the price of the new nodes of a group; None, with a note, without a price of their type."""
        prices = self._parameters.prices
        if not prices:
            return None
        kind = one.group.instance_type
        if kind not in prices:
            # Set, and not counted by `note`: the cost of a group is computed several times.
            self._rows.notes[f"instance types without a price: {kind or 'without a type'}"] = 0
            return None
        return prices[kind] * one.nodes

    def _headline(self, pending_count: int, grown: list[GroupGrowth], left: int) -> str:
        """Return the answer as a sentence; `left` is the number of pods that no group takes."""
        if not pending_count:
            return "No pod is pending for want of a node."
        helped = sum(len(one.pods) for one in grown)
        parts = [f"{counted(pending_count, 'pod')} pending for want of a node"]
        if grown:
            nodes = ", ".join(f"{counted(one.nodes, 'node')} more of {one.group.name}" for one in grown)
            costs = [cost for one in grown if (cost := self._cost(one)) is not None]
            price = f" ({sum(costs):,.2f})" if costs else ""
            parts.append(f"{helped} would run with {nodes}{price}")
        if left:
            parts.append(f"no node group takes {left}")
        return "; ".join(parts) + "."


def _schedule(scheduler: PodScheduler, row: int, request: NDArray[np.int64]) -> tuple[int, str]:
    """Schedule a pod that has no node; return the node, or -1 and the reason."""
    try:
        found = scheduler.schedule(row, NO_NODE, request)
    except Undecidable as unknown:
        return NO_NODE, str(unknown)
    return found.node, found.reason


def _node_groups(snapshot: Snapshot, label: str) -> list[NodeGroup]:
    """Return the groups of nodes by a label ("": the first of `GROUP_LABELS` that a node has) and zone.

    New nodes of a group are like its first ready one. Raise `InvalidInput` for a label that no ready node
    has.
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


def _daemon_requests(snapshot: Snapshot, node: int) -> dict[str, int]:
    """Return the sums of the requests of the daemon pods of a node, and their number as `pods`."""
    first, last = int(snapshot.offsets[node]), int(snapshot.offsets[node + 1])
    rows = first + np.flatnonzero(of_daemon_sets(snapshot, slice(first, last)))
    sums = request_matrix(snapshot, rows).sum(axis=0)
    return dict(zip(snapshot.resources.names, sums.tolist(), strict=True)) | {"pods": len(rows)}
