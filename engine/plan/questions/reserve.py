"""Fit kubeReserved, systemReserved, the eviction threshold and maxPods to recorded use, per node type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from engine.api.amounts.sizes import quantity_size
from engine.api.encoding.counts import counted
from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer, Rows
from engine.plan.history.history import History
from engine.plan.history.history_file import read_history
from engine.plan.rightsizing.replay import POD_BATCH, PodUse
from engine.plan.rightsizing.reserves import (
    MEASURES,
    FittedReserve,
    NodeOutside,
    fitted,
    fitted_max_pods,
    fitted_threshold,
    nodes_outside,
)
from engine.plan.rightsizing.workloads import Workloads
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.node_labels import instance_types
from engine.plan.snapshot.objects import node_object

UNITS: Final = {"cpu": "milli-CPU", "memory": "bytes"}
TODAY: Final = "today's reserve is capacity less allocatable, so it includes the eviction threshold"
SUMMED: Final = "nodes without a record of all pods' cgroup: the sum over their pods counts instead"
UNRECORDED: Final = "nodes without a record of their own memory, which are left out"
APART: Final = "nodes whose memory is never recorded at the same moment as that of their pods"
NO_SYSTEM: Final = "system.slice is not recorded: all goes to kubeReserved"


class ReserveParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of reserve."""

    history: Annotated[str, Meta(description="recorded use: the file of `kubengine plan history`")] = ""
    group_by: Annotated[
        str, Meta(description="label that names a node's type  [default: the instance type]")
    ] = ""
    cpu_percentile: Annotated[float, Meta(description="percentile of CPU outside of pods", gt=0, le=100)] = 95
    memory_percentile: Annotated[
        float, Meta(description="percentile of memory outside of pods", gt=0, le=100)
    ] = 100
    margin: Annotated[float, Meta(description="percent added to it", ge=0, le=10_000)] = 10

    def __post_init__(self) -> None:
        if not self.history:
            raise InvalidInput("name the recorded use", subject="history")


def reserve(snapshot: Snapshot, parameters: ReserveParameters) -> Answer:
    """Return per node type `reserve` (object: the field of the configuration, amount: its value) and
    `max-pods`; per node `under-reserved` (amount: by how much the worst moment exceeded today's reserve) or
    `reserved` (amount: how much of the reserve was left at the worst moment).

    Raise `InvalidInput` if the history has no memory of the snapshot's nodes.
    """
    return _Reserve(snapshot, parameters).answer()


class _Reserve:
    """Compute one answer. `_short` counts the nodes that exceeded their reserve, by resource; `_sentences`
    are the parts of the headline.
    """

    def __init__(self, snapshot: Snapshot, parameters: ReserveParameters) -> None:
        self._snapshot, self._parameters = snapshot, parameters
        self._history: History = read_history(Path(parameters.history))
        self._rows = Rows([*snapshot.node_names, ""])
        self._cluster = snapshot.node_count
        self._use = PodUse(snapshot, Workloads(snapshot), self._history)
        self._nodes = nodes_outside(snapshot, self._history, self._use)
        self._short: dict[str, int] = dict.fromkeys(("memory", "cpu"), 0)
        self._sentences: list[str] = []

    def answer(self) -> Answer:
        rows, missing = self._rows, self._snapshot.node_count - len(self._nodes)
        if not self._nodes:
            raise InvalidInput("has no memory of the snapshot's nodes", subject=self._parameters.history)
        rows.note(TODAY)
        for text, count in (
            (UNRECORDED, missing),
            (SUMMED, sum(one.pods_summed for one in self._nodes)),
            (APART, sum(not one.has_memory for one in self._nodes)),
        ):
            if count:
                rows.note(text, count)
        for kind, nodes in self._nodes_by_type().items():
            self._add_type(kind, nodes)
        for one in self._nodes:
            self._add_node(one)
        memory, cpu = self._short["memory"], self._short["cpu"]
        risk = (
            f"Outside of pods, {memory} of {len(self._nodes)} nodes used more memory and {cpu} more cpu than "
            "they reserve today"
        )
        return replace(rows.answer(), headline=f"{'; '.join(self._sentences)}. {risk}.")

    def _nodes_by_type(self) -> dict[str, list[NodeOutside]]:
        key = self._parameters.group_by
        types = instance_types(self._snapshot)
        found: dict[str, list[NodeOutside]] = {}
        for one in self._nodes:
            kind = node_object(self._snapshot, one.node).labels.get(key, "") if key else types[one.node]
            found.setdefault(kind or "nodes without a type", []).append(one)
        return found

    def _add_type(self, kind: str, nodes: list[NodeOutside]) -> None:
        """Add the rows of one node type: reserves of each resource, the eviction threshold, and maxPods."""
        parameters, snapshot = self._parameters, self._snapshot
        fits: dict[str, FittedReserve] = {}
        for measure in MEASURES:
            percentile = getattr(parameters, f"{measure}_percentile")
            found = fitted(nodes, measure, percentile, parameters.margin)
            if found is None:
                self._rows.note(f"{kind}: no {measure} of nodes is recorded")
                continue
            fits[measure] = found
            if all(one.system.get(measure) is None for one in nodes):
                self._rows.notes[NO_SYSTEM] = 0
            reason = (
                f"p{percentile:g} of {found.values:,} values of {counted(len(nodes), 'node')}, plus "
                f"{parameters.margin:g} %; {found.above:,} values above"
            )
            for field, value in (("kubeReserved", found.kube), ("systemReserved", found.system)):
                if value:
                    name = f"{kind}: {field} {measure}"
                    self._rows.add(self._cluster, "reserve", name, reason, value, UNITS[measure])
        # A label may group nodes of several sizes: what is fitted must suit the smallest.
        sizes = snapshot.allocatable("memory", "capacity")[[one.node for one in nodes]]
        capacity = int(sizes.min())
        if sizes.max() > capacity:
            self._rows.note(
                f"{kind}: nodes with more memory than the smallest, for which the threshold and "
                "maxPods are fitted",
                int((sizes > capacity).sum()),
            )
        threshold = fitted_threshold(nodes, capacity)
        rise = quantity_size(round(max(one.rise for one in nodes)))
        self._rows.add(
            self._cluster, "reserve", f"{kind}: evictionHard memory.available",
            f"memory rose by up to {rise} in {self._history.times.step} s", threshold, "bytes",
        )  # fmt: skip
        self._add_max_pods(kind, nodes, capacity, threshold)
        self._add_sentence(kind, nodes, fits)

    def _add_max_pods(self, kind: str, nodes: list[NodeOutside], capacity: int, threshold: int) -> None:
        """Add the row of `maxPods`, if the pods of these nodes have recorded memory. Amounts are in bytes."""
        counts = np.diff(self._snapshot.offsets)[[one.node for one in nodes]]
        pods = np.concatenate(
            [np.arange(*self._snapshot.offsets[one.node : one.node + 2].tolist()) for one in nodes]
        )
        if not len(pods):
            return
        # The values of all pods at all times may not fit in memory at once.
        batches = np.array_split(pods, -(-len(pods) // POD_BATCH))
        most = np.concatenate([self._use.of(batch, "memory").max(axis=1) for batch in batches])
        usual = float(most.mean())
        found = fitted_max_pods(nodes, counts, usual, capacity, threshold)
        if found is None:
            return
        limit = int(self._snapshot.allocatable("pods")[nodes[0].node])
        reason = f"pods use {quantity_size(round(usual))} at most on average"
        if found[1]:
            reason += f", and {quantity_size(round(found[1]))} outside"
        reason += f"; {limit} today"
        self._rows.add(self._cluster, "max-pods", f"{kind}: maxPods", reason, found[0], "pods")

    def _add_sentence(self, kind: str, nodes: list[NodeOutside], fits: dict[str, FittedReserve]) -> None:
        parts = [f"{_amount(fit.total, measure)} of {measure}" for measure, fit in fits.items()]
        today = [_amount(self._reserved_today(nodes[0].node, measure), measure) for measure in fits]
        self._sentences.append(f"{kind}: reserve {' and '.join(parts)} (today {' and '.join(today)})")

    def _reserved_today(self, node: int, measure: str) -> int:
        """Return capacity minus allocatable of a node, in milli-CPU or bytes."""
        snapshot = self._snapshot
        capacity = int(snapshot.allocatable(measure, "capacity")[node])
        return max(capacity - int(snapshot.allocatable(measure)[node]), 0)

    def _add_node(self, one: NodeOutside) -> None:
        """Add rows that compare the worst moment of a node with what it reserves today."""
        for measure, values in one.outside.items():
            if np.isnan(values).all():
                continue
            worst = int(np.nanargmax(values))
            most, today = int(values[worst]), self._reserved_today(one.node, measure)
            times = int((values > today).sum())
            moment = self._history.times.text(worst)
            reason = f"{measure} outside of pods {_amount(most, measure)} on {moment}"
            reason += f", reserved {_amount(today, measure)}"
            if times:
                self._short[measure] += 1
                reason += f"; {times} moments above"
            decision = "under-reserved" if times else "reserved"
            self._rows.add(one.node, decision, measure, reason, abs(most - today), UNITS[measure])


def _amount(value: int, measure: str) -> str:
    return quantity_size(value) if measure == "memory" else f"{value}m"
