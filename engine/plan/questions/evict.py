"""Compute which pods are evicted under memory, disk or PID pressure, in which order, and when the pressure
ends.

`eviction_course` runs the agent's own decisions until nothing is left to do: hard and soft thresholds
(`engine.eviction.thresholds`), observed over time by `engine.eviction.pressure`, and pods in the order of
`engine.tables.eviction`. As on a node, one pod is evicted at a time, and critical pods stay.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from engine.api.amounts.eviction_amounts import HARD_DEFAULTS, Amount
from engine.api.amounts.sizes import quantity_size
from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.quantity import Quantity
from engine.eviction.layout import CONTAINERFS, Layout, with_container_filesystem
from engine.eviction.signals import IMAGEFS_AVAILABLE
from engine.eviction.thresholds import Threshold, parse_thresholds, thresholds_from_config
from engine.images import selection
from engine.images.policy import ImageGCPolicy
from engine.plan.answers.answer import Answer, AnswerPodRows, Rows, coded
from engine.plan.eviction.eviction_course import EvictionCourses, Evictions, NodeStore, Usage, nearest
from engine.plan.eviction.pods_in_order import NodesPods
from engine.plan.questions.configuration import NodeConfigurations
from engine.plan.questions.image_columns import image_columns, image_slice
from engine.plan.questions.node_stores import KINDS, Kind, NodeStores, Resource
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.lazy_table import read_ahead
from engine.plan.snapshot.schema import MAX_AMOUNT
from engine.tables import QOS_NAMES


class EvictParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of evict."""

    resource: Annotated[Resource, Meta(description="memory, disk, inodes or processes")] = "memory"
    signal: Annotated[
        str,
        Meta(
            description="the signal that available, threshold and soft refer to, such as imagefs.available; "
            "default: the first signal of the resource"
        ),
    ] = ""
    growth: Annotated[
        str, Meta(description="added to every pod's use: 20% of it, or an amount like 100Mi")
    ] = ""
    use: Annotated[
        str,
        Meta(description="use of pods without statistics, as a share of the request (80%); none: unknown"),
    ] = ""
    available: Annotated[str, Meta(description="what is available before the growth: an amount or 5%")] = ""
    threshold: Annotated[
        str, Meta(description="the hard threshold instead of the configured: 100Mi or 10%")
    ] = ""
    soft: Annotated[str, Meta(description="the soft threshold instead of the configured: 500Mi or 15%")] = ""
    grace: Annotated[str, Meta(description="grace period of the soft threshold: 90s")] = "90s"
    config: Annotated[str, Meta(description="a KubeletConfiguration for every node")] = ""
    changes: Annotated[dict[str, Any], Meta(description="fields laid over the configuration")] = {}
    reclaim: Annotated[bool, Meta(description="disk: remove unused images before evicting pods")] = True
    max_evictions: Annotated[int, Meta(description="stop after this many evictions per node", ge=1)] = 1000

    def __post_init__(self) -> None:
        """Raise `InvalidInput` with the agent's message for what an agent refuses in its configuration."""
        signals = KINDS[self.resource].signals
        signal = self.signal or signals[0]
        if signal not in signals:
            raise InvalidInput(f"expected one of {', '.join(signals)}, got {signal!r}", subject="signal")
        if signal.startswith(CONTAINERFS) and (self.threshold or self.soft):
            raise InvalidInput(
                "follows the file system that it lies on: name nodefs or imagefs", subject=signal
            )
        _check_threshold(signal, self.threshold, "threshold")
        _check_threshold(signal, self.soft, "soft", self.grace)
        _check_available(signal, self.available)
        for field in ("growth", "use"):
            text = getattr(self, field)
            if text.endswith("%") or (text and field == "use"):
                _share(np.zeros(0, np.int64), text, field)
            elif text:
                _amount(text, field)


def _check_threshold(signal: str, text: str, field: str, grace: str = "") -> None:
    """Raise `InvalidInput` with the agent's message for an invalid threshold; `field` is its parameter.

    A threshold with a `grace` period is a soft one.
    """
    if not text:
        return
    hard, soft = ({}, {signal: text}) if grace else ({signal: text}, {})
    try:
        parse_thresholds([], hard, soft, {signal: grace} if grace else {}, {})
    except InvalidInput as error:
        at = "grace" if error.subject == "evictionSoftGracePeriod" else field
        raise InvalidInput(error.message, subject=at) from None


def _check_available(signal: str, text: str) -> None:
    """Raise `InvalidInput` for an available amount that is neither a quantity nor 0 to 100 percent."""
    if not text.endswith("%"):
        if text:
            _amount(text, "available")
        return
    amount = Amount.parse(text, "available")
    if amount.fraction < 0:
        raise InvalidInput(f"percentage of {signal} must be >= 0%: {text}", subject="available")
    if amount.fraction > 1:
        raise InvalidInput(f"percentage of {signal} must be <= 100%: {text}", subject="available")


def evict(snapshot: Snapshot, parameters: EvictParameters) -> Answer:
    """Return per node `calm` (amount: the distance to the nearest threshold), `relieved` (amount: available
    at the end), `stuck` (amount: still missing) or `unknown`.

    For a node under pressure, rows `waits` (amount: seconds of a grace period), `reclaim` (amount: bytes of
    unused images) and `evict` (amount: what the pod frees) come first, in the order in which they happen.
    Then `used-before` and `used-after` give the use of each store. Rows `clears` follow for each node
    condition (amount: seconds from the beginning).
    """
    read_ahead(snapshot.pods, f"usage/{parameters.resource}", "priority", "qos", "flags")
    rows = Rows(snapshot.node_names, snapshot.pod_labels, _reason)
    kind = KINDS[parameters.resource]
    signal = parameters.signal or kind.signals[0]
    configurations = NodeConfigurations(snapshot, parameters.config, parameters.changes)
    configurations.add_notes(rows)
    stores = NodeStores(
        snapshot,
        parameters.resource,
        configurations,
        _usage(snapshot, parameters, rows),
        _growth(parameters.growth),
        _assumed_available(snapshot, parameters, signal, rows),
        rows,
    )
    unused_bytes = _unused_image_bytes(snapshot, parameters, configurations, rows)
    for nodes, layout, readable in stores.groups():
        of_nodes = stores.of(nodes, layout, readable)
        for store in of_nodes:
            if IMAGEFS_AVAILABLE in store.signals:
                store.images = np.array([unused_bytes(node) for node in nodes.tolist()], np.int64)
        # The nodes of a group have the same configuration.
        rules = _rules(configurations.of(int(nodes[0])), layout, signal, parameters)
        if not rules.thresholds or not any(signal in store.signals for store in of_nodes):
            decision, lacking = ("unknown", "reading of") if rules.thresholds else ("calm", "threshold for")
            nothing = np.zeros(len(nodes), np.int64)
            rows.block(nodes, decision, "", f"no {lacking} {signal}", nothing, kind.unit)
            continue
        simulated = _SimulatedNodes(rows, snapshot, nodes, of_nodes, rules, kind, parameters.max_evictions)
        simulated.add_calm()
        for place in simulated.under_pressure:
            simulated.add_node(place)
    # Nodes with equal rules were computed together; sorting restores the order of the nodes.
    return rows.answer(sort=True)


class _Rules(NamedTuple):
    """Hold the thresholds of nodes for one resource, their transition period in seconds, and the layout of
    their file systems.
    """

    thresholds: list[Threshold]
    transition_period: float
    layout: Layout


class _SimulatedNodes:
    """Simulate the evictions of nodes that have the same rules and stores, and add their rows.

    A node is known by its place, its position in `nodes`.
    """

    def __init__(
        self,
        rows: Rows,
        snapshot: Snapshot,
        nodes: NDArray[np.int64],
        stores: Sequence[NodeStore],
        rules: _Rules,
        kind: Kind,
        max_evictions: int,
    ) -> None:
        self._rows, self._nodes, self._unit = rows, nodes, kind.unit
        self._priority, self._qos = snapshot.column("priority"), snapshot.column("qos")
        self._signals = [store.signals for store in stores]
        places, distances = nearest(rules.thresholds, stores)
        above = [f"{threshold.signal} is above {threshold.value}" for threshold in rules.thresholds]
        self._nearest = coded(places, above), distances
        before = [store.capacity - store.available for store in stores]
        self._courses = EvictionCourses(
            stores,
            rules.thresholds,
            layout=rules.layout,
            transition_period=rules.transition_period,
            order=NodesPods(snapshot, nodes, kind.ranked).in_order,
            pods=snapshot.placed,
            max_evictions=max_evictions,
        ).found
        self._available = [store.available for store in stores]
        # The simulation has updated the stores.
        self._used = [
            (used, store.capacity - store.available) for used, store in zip(before, stores, strict=True)
        ]
        self.under_pressure = sorted(
            place for place, course in self._courses.items() if course.began is not None
        )

    def add_calm(self) -> None:
        """Add the rows of the nodes without pressure."""
        reasons, distances = self._nearest
        calm = np.ones(len(self._nodes), bool)
        calm[self.under_pressure] = False
        self._rows.block(
            self._nodes[calm], "calm", "", reasons.filter(pa.array(calm)), distances[calm], self._unit
        )

    def add_node(self, place: int) -> None:
        """Add the rows of one node under pressure."""
        rows, node, unit = self._rows, int(self._nodes[place]), self._unit
        course = self._courses[place]
        assert course.began is not None
        evicted = 0
        for step in course.steps:
            if isinstance(step, Evictions):
                evicted += len(step.pods)
                priority = self._priority[step.pods].astype(np.int64)
                keys = priority << 3 | self._qos[step.pods] << 1 | step.known
                rows.add_pods(node, "evict", AnswerPodRows(step.pods, keys, step.freed), unit)
            elif step.decision == "waits":
                reason = f"{step.threshold.signal} below {step.threshold.value}"
                rows.add(node, "waits", "", reason, step.amount, "s")
            else:
                rows.add(node, "reclaim", "", "unused images", step.amount, unit)
        for signals, (before, after) in zip(self._signals, self._used, strict=True):
            rows.add_use(node, signals[0].partition(".")[0], int(before[place]), int(after[place]), unit)
        signal, value = course.began.signal, course.began.value
        if course.missing:
            reason = f"{signal} stays below {value} after {evicted} evicted"
            rows.add(node, "stuck", "", reason, course.missing, unit)
            return
        available = next(
            int(available[place])
            for available, signals in zip(self._available, self._signals, strict=True)
            if signal in signals
        )
        rows.add(node, "relieved", "", f"{signal} was below {value}: {evicted} evicted", available, unit)
        for condition, seconds in course.clears.items():
            rows.add(node, "clears", condition, "after the transition period", seconds, "s")


def _reason(key: int) -> str:
    """Return the reason for an evicted pod from a key: `priority << 3 | qos << 1 | whether its use is
    known`.
    """
    unknown = "" if key & 1 else ", no statistics"
    return f"{QOS_NAMES[key >> 1 & 3]}, priority {key >> 3}{unknown}"


def _unused_image_bytes(
    snapshot: Snapshot, parameters: EvictParameters, configurations: NodeConfigurations, rows: Rows
) -> Callable[[int], int]:
    """Return a function of a node: the bytes of its images that eviction may delete."""
    if parameters.resource != "disk" or not parameters.reclaim or not snapshot.images.num_rows:
        return lambda node: 0
    columns, starts = image_columns(snapshot, rows)
    now = float(snapshot.meta.get("taken_at", 0.0))

    def unused_bytes(node: int) -> int:
        images = image_slice(columns, int(starts[node]), int(starts[node + 1]))
        policy = ImageGCPolicy.from_config(configurations.of(node))
        unused = np.frombuffer(selection.spare(images, policy, now), np.bool_)
        return int(images.size[unused].sum())

    return unused_bytes


def _rules(config: KubeletConfiguration, layout: Layout, signal: str, parameters: EvictParameters) -> _Rules:
    """Return the rules of a configuration; the thresholds of the parameters replace those for `signal`."""
    changed: dict[str, Any] = {}
    if parameters.threshold:
        hard = HARD_DEFAULTS if config.eviction_hard is None else config.eviction_hard
        changed["eviction_hard"] = hard | {signal: parameters.threshold}
    if parameters.soft:
        changed["eviction_soft"] = (config.eviction_soft or {}) | {signal: parameters.soft}
        graces = config.eviction_soft_grace_period or {}
        changed["eviction_soft_grace_period"] = graces | {signal: parameters.grace}
    # `msgspec.structs.replace` runs `__post_init__` again, which turns zeros into defaults.
    config = copy.copy(config)
    for name, value in changed.items():
        setattr(config, name, value)
    thresholds = with_container_filesystem(thresholds_from_config(config), layout)
    signals = KINDS[parameters.resource].signals
    of_resource = [threshold for threshold in thresholds if threshold.signal in signals]
    return _Rules(of_resource, float(config.eviction_pressure_transition_period), layout)


def _usage(snapshot: Snapshot, parameters: EvictParameters, rows: Rows) -> Usage:
    """Return the pods' use of the resource, and whether it is known; with the parameter `use`, a share of the
    request stands for an unknown use.
    """
    usage, known = snapshot.usage(parameters.resource)
    missing = int(len(known) - known.sum())
    if missing and parameters.use:
        name = {"memory": "memory", "disk": "ephemeral-storage"}.get(parameters.resource)
        if name is None:
            raise InvalidInput("pods cannot request inodes or processes", subject="use")
        assumed = _share(snapshot.per_pod(f"ranking/{name}"), parameters.use, "use")
        rows.note(f"pods without statistics, assumed to use {parameters.use} of their request", missing)
        return np.where(known == 1, usage, assumed), np.ones(len(usage), np.uint8)
    if missing:
        rows.note("pods without statistics: evicted first, freeing an unknown amount", missing)
    return usage, known


def _growth(growth: str) -> Callable[[NDArray[np.int64], NDArray[np.uint8]], NDArray[np.int64]]:
    """Return a function of the pods' use and whether it is known: the use after the growth."""
    if not growth:
        return lambda usage, known: usage
    if growth.endswith("%"):
        _share(np.zeros(0, np.int64), growth, "growth")
        return lambda usage, known: usage + _share(usage, growth, "growth")
    amount = _amount(growth, "growth")
    return lambda usage, known: usage + np.where(known == 1, amount, 0)


def _assumed_available(
    snapshot: Snapshot, parameters: EvictParameters, signal: str, rows: Rows
) -> tuple[str, Callable[[NDArray[np.int64]], NDArray[np.int64]]] | None:
    """Return the signal and a function of int64[nodes] capacities: what is available before the growth, as
    the parameters assume; None without such an assumption.
    """
    text = parameters.available
    if not text:
        return None
    rows.note(f"every node is assumed to have {text} available before the growth")
    if text.endswith("%"):
        return signal, lambda capacity: _share(capacity, text, "available")
    amount = _amount(text, "available")

    def available(capacity: NDArray[np.int64]) -> NDArray[np.int64]:
        beyond = np.flatnonzero((capacity >= 0) & (capacity < amount))
        if len(beyond):
            name = snapshot.node_names[int(beyond[0])]
            has = int(capacity[beyond[0]])
            shown = quantity_size(has) if KINDS[parameters.resource].unit == "bytes" else str(has)
            raise InvalidInput(f"{text} is more than the {shown} that {name} has in all", subject="available")
        return np.full(len(capacity), amount, np.int64)

    return signal, available


def _amount(text: str, field: str) -> int:
    """Return a quantity as an integer. Raise `InvalidInput` that names the field."""
    try:
        amount = Quantity.parse(text).value
    except InvalidInput as error:
        raise InvalidInput(error.message, subject=field) from None
    if not 0 <= amount <= MAX_AMOUNT:
        raise InvalidInput(f"expected 0 to {MAX_AMOUNT}, got {text}", subject=field)
    return amount


def _share(values: NDArray[np.int64], text: str, field: str) -> NDArray[np.int64]:
    """Return a percentage of each value, truncated. Raise `InvalidInput` that names the field.

    Floats would round amounts above 2**53.
    """
    try:
        percent = Quantity.parse(text.removesuffix("%"))
    except InvalidInput:
        percent = Quantity(-1)
    if not text.endswith("%") or percent.nano < 0 or percent.value > 1_000_000:
        raise InvalidInput(f"expected a percentage such as 20%, got {text!r}", subject=field)
    milli = percent.milli
    if len(values) and float(values.max()) * milli / 100_000 > MAX_AMOUNT:
        raise InvalidInput(f"{text} of {values.max()} is more than {MAX_AMOUNT}", subject=field)
    share: NDArray[np.int64] = values // 100_000 * milli + values % 100_000 * milli // 100_000
    return share
