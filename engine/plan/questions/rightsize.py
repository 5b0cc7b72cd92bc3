"""Compute new requests from recorded use, and what would have happened under them.

Requests come from recorded use, or from another tool. Pods are then moved off the nodes that are not needed
(`engine.plan.placement.consolidate`), and the recorded use of all pods is added up on the nodes where they
would run (`engine.plan.rightsizing.replay`). This shows which pods would have been OOM-killed, evicted,
throttled or short of CPU, and when. Where memory falls below the eviction threshold, the question `evict`
decides with the use of that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from engine.api.amounts.sizes import quantity_size
from engine.api.encoding.counts import counted
from engine.api.errors import InvalidInput
from engine.api.quantity import Quantity
from engine.eviction.signals import ALLOCATABLE_MEMORY_AVAILABLE, MEMORY_AVAILABLE
from engine.eviction.thresholds import Threshold, thresholds_from_config
from engine.plan.answers.answer import Answer, Rows
from engine.plan.history.history import History
from engine.plan.history.history_file import read_history
from engine.plan.placement.budgets import Budgets
from engine.plan.placement.consolidate import Consolidation, consolidate
from engine.plan.placement.node_capacity import NodeCapacity, Rule
from engine.plan.questions.configuration import NodeConfigurations
from engine.plan.rightsizing.pressure import (
    CPUContention,
    EvictedPod,
    MemoryOfNode,
    PressedNode,
    contention,
    evictions,
    memory_threshold,
    pressed,
)
from engine.plan.rightsizing.proposals import (
    Limits,
    SizedContainer,
    SizingRule,
    above,
    from_recommended,
    from_use,
)
from engine.plan.rightsizing.recommended import read_recommended
from engine.plan.rightsizing.replay import PodUse, each_node, system_memory
from engine.plan.rightsizing.resized import resized
from engine.plan.rightsizing.units import container_units
from engine.plan.rightsizing.workloads import Workloads
from engine.plan.snapshot.columns import NO_NODE, Snapshot, arranged
from engine.plan.snapshot.faults import FaultLog
from engine.plan.snapshot.lazy_table import whole
from engine.plan.snapshot.node_labels import instance_types
from engine.tables import QOS_NAMES

CLOCK_SKEW: Final = 86_400
"""Seconds between the end of the history and the snapshot above which an answer notes them."""
ASSUMPTIONS: Final = (
    "recorded use does not change with requests and nodes; CPU is the mean of a step, so shorter peaks are "
    "not in it"
)
PLACEMENT: Final = "where pods go is one possible placement: the scheduler's filters, then requests (--rule)"


class RightsizeParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of rightsize."""

    history: Annotated[str, Meta(description="recorded use: the file of `kubengine plan history`")] = ""
    recommendations: Annotated[
        str,
        Meta(
            description="take requests from this file: VerticalPodAutoscalers, krr's JSON, or rows of "
            "workload, container, cpu, memory; default: from the history"
        ),
    ] = ""
    cpu_percentile: Annotated[float, Meta(description="percentile of recorded CPU", gt=0, le=100)] = 95
    memory_percentile: Annotated[float, Meta(description="percentile of recorded memory", gt=0, le=100)] = 100
    cpu_margin: Annotated[float, Meta(description="percent added to it", ge=0, le=10_000)] = 15
    memory_margin: Annotated[float, Meta(description="percent added to it", ge=0, le=10_000)] = 15
    cpu_floor: Annotated[str, Meta(description="no request for less CPU")] = "10m"
    memory_floor: Annotated[str, Meta(description="no request for less memory")] = "32Mi"
    min_values: Annotated[
        int, Meta(description="containers with fewer recorded values keep theirs", ge=1)
    ] = 100
    limits: Annotated[
        Limits,
        Meta(description="limits: keep, scale with the request, or requests (memory alike, no CPU limit)"),
    ] = "keep"
    consolidate: Annotated[bool, Meta(description="whether nodes that are not needed are emptied")] = True
    rule: Annotated[Rule, Meta(description="pack (fullest node that fits) or spread (emptiest first)")] = (
        "pack"
    )
    config: Annotated[str, Meta(description="a KubeletConfiguration for every node")] = ""
    changes: Annotated[dict[str, Any], Meta(description="fields laid over the configuration")] = {}
    prices: Annotated[
        dict[str, float], Meta(description="price of a node by instance type: m5.large=70,m5.xlarge=140")
    ] = {}

    def __post_init__(self) -> None:
        if not self.history and not self.recommendations:
            raise InvalidInput("name the recorded use, or give recommendations", subject="history")
        for field in ("cpu_floor", "memory_floor"):
            _floor(getattr(self, field), field)

    @property
    def sizing(self) -> SizingRule:
        """Return how requests follow from recorded use."""
        return SizingRule(
            self.cpu_percentile,
            self.memory_percentile,
            self.cpu_margin,
            self.memory_margin,
            _floor(self.cpu_floor, "cpu_floor"),
            _floor(self.memory_floor, "memory_floor"),
            self.min_values,
        )


def _floor(text: str, field: str) -> int:
    """Return the smallest request in milli-CPU or bytes. Raise `InvalidInput` that names the field."""
    try:
        quantity = Quantity.parse(text)
    except InvalidInput as error:
        raise InvalidInput(error.message, subject=field) from None
    if quantity.nano < 0:
        raise InvalidInput(f"{text} is negative", subject=field)
    return quantity.milli if field == "cpu_floor" else quantity.value


def rightsize(snapshot: Snapshot, parameters: RightsizeParameters) -> Answer:
    """Return per container and resource of a workload `lowers`, `raises` or `keeps` (amount: the change per
    pod), and `oom-recorded` for containers that were OOM-killed already, so that their need is unknown.

    Per node follow `removable` (amount: pods that move) or `needed`, with a `move` per pod; `used-before` and
    `used-after` (amount: the requests of its pods); and `pressure` where memory would have fallen below the
    eviction threshold (amount: moments), with an `evict` per pod. Per pod follow `oom-kill` and `throttle`
    (amount: moments above the new limit) and `squeeze` (amount: milli-CPU that it lacks at the worst moment).
    A pod is at risk if it is OOM-killed, evicted or squeezed.
    """
    study = _Study(snapshot, parameters)
    study.add_requests()
    study.add_nodes()
    study.add_risks()
    return study.answer()


class _Study:
    """Compute one answer: the cluster as it is, with new requests, and with fewer nodes.

    `_sized` are the containers with their new requests, and `_after` is the snapshot with these. `_now` and
    `_then` are the consolidations of both. `_at_risk` maps a kind of risk to the labels of pods.
    """

    def __init__(self, snapshot: Snapshot, parameters: RightsizeParameters) -> None:
        self._snapshot, self._parameters = snapshot, parameters
        self._everywhere = snapshot.node_count
        self._rows = Rows([*snapshot.node_names, ""])
        self._rows.note(ASSUMPTIONS)
        self._history = read_history(Path(parameters.history)) if parameters.history else None
        self._workloads = Workloads(snapshot)
        self._configurations = NodeConfigurations(snapshot, parameters.config, parameters.changes)
        self._configurations.add_notes(self._rows)
        self._at_risk: dict[str, set[str]] = {}
        self._evicted_today = 0
        self._note_history()
        self._sized = self._new_requests()
        self._after = resized(snapshot, self._workloads, self._sized)
        self._now = Consolidation(snapshot.column("node").astype(np.int64))
        self._then = self._now

    def _note_history(self) -> None:
        """Note the time that the history covers, its age and its faults."""
        history, rows = self._history, self._rows
        if history is None:
            rows.note("no recorded use (--history): only the placement is computed, no pod's risk")
            return
        times = history.times
        rows.note(f"recorded from {times.text(0)} to {times.text(times.count - 1)}, every {times.step} s")
        taken = float(self._snapshot.meta.get("taken_at", 0.0))
        if taken and abs(taken - times.end) > CLOCK_SKEW:
            days = abs(taken - times.end) / 86_400
            rows.note(
                f"the record ends {days:.1f} days {'before' if times.end < taken else 'after'} the snapshot"
            )
        for text, count in dict(history.meta.get("faults", {})).items():
            rows.note(f"faults of the record ({text})", int(count))

    def _new_requests(self) -> list[SizedContainer]:
        """Return the containers of all workloads with new requests. Raise `InvalidInput`."""
        parameters, rows = self._parameters, self._rows
        units = container_units(self._snapshot, self._workloads, self._history)
        single = sum(unit.workload.kind == "Pod" for unit in units)
        if single:
            rows.note("containers of pods without a controller: someone has to create them again", single)
        if not parameters.recommendations:
            if self._history is None:
                raise InvalidInput("name the recorded use", subject="history")
            return from_use(units, self._history, parameters.sizing, parameters.limits)
        faults = FaultLog()
        recommended = read_recommended(parameters.recommendations, faults)
        for fault in faults.kept:
            rows.note(str(fault))
        name = Path(parameters.recommendations).name
        sized, unmatched = from_recommended(units, recommended, name, parameters.limits)
        if unmatched:
            first = unmatched[0]
            label = f"{first.namespace}/{first.workload}: {first.container}"
            rows.note(f"recommendations that match no container ({label}, …)", len(unmatched))
        return sized

    def add_requests(self) -> None:
        """Add a row for each container and resource."""
        for one in self._sized:
            now, after = one.unit.now, one.after
            for name, unit, old, new in (
                ("cpu", "milli-CPU", now.cpu, after.cpu),
                ("memory", "bytes", now.memory, after.memory),
            ):
                change = (new or 0) - (old or 0)
                decision = "keeps" if not change else "lowers" if change < 0 else "raises"
                amounts = f"{name} {_amount(old, name)}"
                if change:
                    amounts += f" → {_amount(new, name)}"
                reason = f"{amounts}: {one.reasons[name]}"
                self._rows.add(self._everywhere, decision, str(one.unit), reason, change, unit)

    def add_nodes(self) -> None:
        """Add rows for nodes that are not needed or are, for the pods that move, and for requests on
        nodes.
        """
        snapshot, rows = self._snapshot, self._rows
        if self._parameters.consolidate:
            rows.note(PLACEMENT)
            undisruptable = Budgets(snapshot).undisruptable_pods()
            self._now = consolidate(snapshot, undisruptable, rule=self._parameters.rule)
            self._then = consolidate(self._after, undisruptable, rule=self._parameters.rule)
            node = snapshot.column("node")
            moved = self._then.node_of_pod
            counts = np.bincount(node[(moved != node) & (moved != NO_NODE)], minlength=snapshot.node_count)
            already = set(self._now.removable)
            for number in self._then.removable:
                reason = "already with today's requests" if number in already else "with the new requests"
                rows.add(number, "removable", "", reason, int(counts[number]), "pods")
            for number, reason in self._then.needed.items():
                rows.add(number, "needed", "", reason, 1, "nodes")
            names = snapshot.node_names
            for row in np.flatnonzero((moved != node) & (moved != NO_NODE)).tolist():
                rows.add(
                    int(node[row]), "move", snapshot.pod_label(row), f"to {names[int(moved[row])]}", 1, "pods"
                )
        self._add_requested()

    def _add_requested(self) -> None:
        """Add the requests on each node, before and after, where they differ."""
        before, after = (_requested(snapshot) for snapshot in (self._snapshot, self._placed_after))
        for index, (name, unit) in enumerate((("cpu requested", "milli-CPU"), ("memory requested", "bytes"))):
            for node in range(self._snapshot.node_count):
                values = int(before[index][node]), int(after[index][node])
                if values[0] != values[1]:
                    self._rows.add_use(node, name, *values, unit)

    @property
    def _placed_after(self) -> Snapshot:
        """Return the snapshot with new requests and each pod on its new node."""
        return _moved(self._after, self._then.node_of_pod)

    def add_risks(self) -> None:
        """Add rows for what would have happened to pods in the recorded time."""
        history, snapshot = self._history, self._snapshot
        if history is None:
            return
        use = PodUse(snapshot, self._workloads, history)
        if use.assumed["memory"]:
            self._rows.note("pods without recorded memory, taken to use their request", use.assumed["memory"])
        self._add_above_limits(history)
        memory = self._memory_of_nodes(use, history)
        now = snapshot.column("node").astype(np.int64)
        today = [found for one in each_node(use, now) if (found := pressed(one, memory[one.node]))]
        # Evictions that today's requests would have caused as well, for comparison in the headline.
        self._evicted_today = len(_evicted(snapshot, now, today, memory))
        weight = self._after.per_pod("request/cpu").astype(np.float64)
        cpus = snapshot.allocatable("cpu", "capacity")
        then = []
        for one in each_node(use, self._then.node_of_pod):
            found = pressed(one, memory[one.node])
            if found is not None:
                then.append(found)
                self._add_pressure(found, memory[one.node], history)
            if cpus[one.node] > 0:
                contended = contention(one, weight[one.pods], float(cpus[one.node]))
                if contended is not None:
                    self._add_squeezed(one.node, contended, history)
        moment = {one.node: history.times.text(one.worst) for one in then}
        qos, priority = snapshot.column("qos"), snapshot.column("priority")
        for pod, node, bytes_ in _evicted(self._after, self._then.node_of_pod, then, memory):
            label = snapshot.pod_label(pod)
            reason = (
                f"{QOS_NAMES[int(qos[pod])]}, priority {priority[pod]}, uses {quantity_size(bytes_)} on "
                f"{moment[node]}"
            )
            self._rows.add(node, "evict", label, reason, bytes_, "bytes")
            self._at_risk.setdefault("evicted", set()).add(label)

    def _memory_of_nodes(self, use: PodUse, history: History) -> list[MemoryOfNode]:
        """Return the memory and the hard eviction thresholds of each node."""
        snapshot = self._snapshot
        capacity, allocatable = snapshot.allocatable("memory", "capacity"), snapshot.allocatable("memory")
        system, unknown = system_memory(use, history, snapshot, capacity - allocatable)
        if unknown:
            self._rows.note("nodes whose use outside of pods is not known: what they reserve counts", unknown)
        thresholds: dict[tuple[bool, int], tuple[Threshold, ...]] = {}

        def watching(node: int, *, own: bool) -> tuple[Threshold, ...]:
            """Return the thresholds of memory by the node's own configuration, or with the changes."""
            configurations = self._configurations
            key = own, int((configurations.own_codes if own else configurations.codes)[node])
            if key not in thresholds:
                config = configurations.own(node)[0] if own else configurations.of(node)
                signals = (MEMORY_AVAILABLE, ALLOCATABLE_MEMORY_AVAILABLE)
                found = thresholds_from_config(config)
                thresholds[key] = tuple(one for one in found if one.signal in signals and one.hard)
            return thresholds[key]

        found = []
        for node, (size, part, other) in enumerate(
            zip(capacity.tolist(), allocatable.tolist(), system.tolist(), strict=True)
        ):
            # What a node lets pods request is less than they may use by the threshold that it has today.
            today = memory_threshold(watching(node, own=True), max(size, 0))
            found.append(MemoryOfNode(max(size, 0), max(part, 0) + today, other, watching(node, own=False)))
        return found

    def _add_above_limits(self, history: History) -> None:
        """Add rows for recorded use above the new limits, and for recorded OOM kills."""
        namespaces, pods = history.texts("namespace"), history.texts("pod")
        times = history.times
        node_of = {
            self._snapshot.pod_label(row): int(self._snapshot.column("node")[row])
            for row in range(self._snapshot.placed)
        }
        for one in self._sized:
            unit = one.unit
            if one.killed:
                reason = f"{one.killed} OOM kills recorded: what it needs is not known"
                self._rows.add(self._everywhere, "oom-recorded", str(unit), reason, one.killed, "times")
            for name, limit, decision in (
                ("memory", one.after.memory_limit, "oom-kill"),
                ("cpu", one.after.cpu_limit, "throttle"),
            ):
                if limit is None:
                    continue
                # The history records micro-CPU.
                scaled = limit * 1000 if name == "cpu" else limit
                for found in above(history, unit.rows(name), scaled):
                    label = f"{namespaces[1][namespaces[0][found.row]]}/{pods[1][pods[0][found.row]]}"
                    # The history also has pods that have ended since.
                    if label not in node_of:
                        continue
                    most = found.largest // 1000 if name == "cpu" else found.largest
                    reason = (
                        f"{unit.container} used up to {_amount(most, name)}, its limit is "
                        f"{_amount(limit, name)}; first on {times.text(found.first)}"
                    )
                    self._rows.add(node_of[label], decision, label, reason, found.times, "times")
                    if decision == "oom-kill":
                        self._at_risk.setdefault("OOM-killed", set()).add(label)

    def _add_pressure(self, found: PressedNode, memory: MemoryOfNode, history: History) -> None:
        times = history.times
        reason = (
            f"memory below {quantity_size(memory.threshold)}, first on {times.text(found.first)}; on "
            f"{times.text(found.worst)} pods use {quantity_size(int(found.use.sum()))}, "
            f"{quantity_size(memory.threshold - found.available)} too much"
        )
        self._rows.add(found.node, "pressure", "", reason, found.moments, "times")

    def _add_squeezed(self, node: int, found: CPUContention, history: History) -> None:
        for pod, used, got in found.squeezed:
            label = self._snapshot.pod_label(pod)
            reason = (
                f"gets {got:.0f}m of {used:.0f}m on {history.times.text(found.worst)}; all pods use "
                f"{found.demand:.0f}m of {found.capacity:.0f}m, more than there is {found.moments} times"
            )
            self._rows.add(node, "squeeze", label, reason, round(used - got), "milli-CPU")
            self._at_risk.setdefault("squeezed", set()).add(label)

    def answer(self) -> Answer:
        """Return the rows with a headline."""
        # The headline first: it adds a note about prices.
        headline = self._headline()
        return replace(self._rows.answer(), headline=headline)

    def _headline(self) -> str:
        """Return the answer as sentences: the nodes that are needed, what they cost, and the pods at risk."""
        parts = []
        if self._parameters.consolidate:
            before, after = len(self._now.removable), len(self._then.removable)
            total = self._snapshot.node_count
            fewer = after - before
            parts.append(
                f"{counted(abs(fewer), 'node')} {'fewer' if fewer >= 0 else 'more'}: "
                f"the new requests need {total - after} of {counted(total, 'node')}, "
                f"today's need {total - before}"
            )
            saved = self._saved()
            if saved:
                parts.append(saved)
        if self._history is not None:
            labels = set().union(*self._at_risk.values())
            kinds = ", ".join(f"{len(pods)} {kind}" for kind, pods in self._at_risk.items())
            count = self._evicted_today
            today = f"; {count} evicted with today's requests and nodes" if count else ""
            parts.append(f"{counted(len(labels), 'pod')} at risk{f' ({kinds})' if kinds else ''}{today}")
        return ". ".join(parts) + "."

    def _saved(self) -> str:
        """Return how much less, or more, the nodes cost that the new requests need; "" without prices."""
        prices = self._parameters.prices
        if not prices:
            return ""
        types = instance_types(self._snapshot)
        unknown = sorted({types[node] or "without a type" for node in self._then.removable} - prices.keys())
        if unknown:
            self._rows.note(f"instance types without a price: {', '.join(unknown)}")

        def cost(nodes: Sequence[int]) -> float:
            return sum(prices.get(types[node], 0.0) for node in nodes)

        saved = cost(self._then.removable) - cost(self._now.removable)
        return f"The nodes cost {abs(saved):,.2f} {'less' if saved >= 0 else 'more'}"


def _amount(value: int | None, name: str) -> str:
    """Return a request as text: a size of memory, or CPU in milli-CPU or whole CPUs."""
    if value is None:
        return "none"
    if name == "memory":
        return quantity_size(value)
    return f"{value}m" if value % 1000 else str(value // 1000)


def _requested(snapshot: Snapshot) -> NDArray[np.int64]:
    """Return int64[2, nodes]: the requests on each node in milli-CPU and bytes of memory."""
    capacity = NodeCapacity(snapshot)
    return capacity.total[:2] - capacity.free[:2]


def _evicted(
    snapshot: Snapshot,
    node_of_pod: NDArray[np.int64],
    pressed: Sequence[PressedNode],
    memory: Sequence[MemoryOfNode],
) -> list[EvictedPod]:
    """Return the pods that nodes evict at their worst moment, if each pod is on the node in `node_of_pod`,
    int64[placed]. The pods are rows of `snapshot`.
    """
    if not pressed:
        return []
    use = np.zeros(snapshot.placed, np.int64)
    for one in pressed:
        use[one.pods] = one.use
    # `_moved` arranges pods by node, with those that have none last: `order` is this arrangement.
    order = np.argsort(np.where(node_of_pod == NO_NODE, snapshot.node_count, node_of_pod), kind="stable")
    moved = _moved(snapshot, node_of_pod)
    found = evictions(moved, pressed, memory, use[order[: moved.placed]])
    return [EvictedPod(int(order[one.pod]), one.node, one.use) for one in found]


def _moved(snapshot: Snapshot, node_of_pod: NDArray[np.int64]) -> Snapshot:
    """Return the snapshot with each placed pod on the node in `node_of_pod`, int64[placed], -1 for none."""
    pods = whole(snapshot.pods)
    node = pods["node"].to_numpy().copy()
    node[: snapshot.placed] = node_of_pod
    pods = pods.set_column(pods.schema.get_field_index("node"), "node", pa.array(node, pa.int32()))
    return arranged(whole(snapshot.nodes), pods, templates=snapshot.templates, meta=snapshot.meta)
