"""Compute which pods are evicted first under memory, disk or PID pressure, and when the pressure ends.

`eviction_course` runs the agent's own decisions until nothing is due: thresholds hard and soft
(`engine.eviction.thresholds`), merged and timed by `engine.eviction.pressure`, pods in the order of
`engine.tables.eviction`. As on a node, one pod is evicted at a time and critical pods stay.
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
from engine.plan.eviction.eviction_course import Courses, Evictions, NodeStore, Usage, nearest
from engine.plan.eviction.pods_in_order import NodesPods
from engine.plan.questions.configuration import NodeConfigurations
from engine.plan.questions.image_columns import image_columns, image_slice
from engine.plan.questions.node_stores import KINDS, Kind, NodeStores, Resource
from engine.plan.snapshot.columns import Snapshot
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
        """Raise `InvalidInput` with the agent's message for what it would refuse in its configuration."""
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
    """Validate the threshold with the agent's message, attributed to the parameter that gives it."""
    if not text:
        return
    hard, soft = ({}, {signal: text}) if grace else ({signal: text}, {})
    try:
        parse_thresholds([], hard, soft, {signal: grace} if grace else {}, {})
    except InvalidInput as error:
        at = "grace" if error.subject == "evictionSoftGracePeriod" else field
        raise InvalidInput(error.message, subject=at) from None


def _check_available(signal: str, text: str) -> None:
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
    """Return per node `calm` (amount: the distance to the nearest threshold), `relieved` (available at the
    end), `stuck` (still missing) or `unknown`.

    Before that come `waits` per grace period that expires (seconds), `reclaim` for unused images, and
    `evict` per pod in order, with the amount it frees; after it `clears` per node condition (seconds from
    the beginning). `used-before` and `used-after` follow per memory, file system or process ids of a node
    under pressure.
    """
    rows = Rows(snapshot.node_names, snapshot.pod_labels, _reason)
    kind = KINDS[parameters.resource]
    main = parameters.signal or kind.signals[0]
    configurations = NodeConfigurations(snapshot, parameters.config, parameters.changes)
    configurations.note(rows)
    stores = NodeStores(
        snapshot,
        parameters.resource,
        configurations,
        _usage(snapshot, parameters, rows),
        _growing(parameters.growth),
        _given(snapshot, parameters, main, rows),
        rows,
    )
    images = _unused_images(snapshot, parameters, configurations, rows)
    for nodes, layout, readable in stores.alike():
        mine = stores.of(nodes, layout, readable)
        for store in mine:
            if IMAGEFS_AVAILABLE in store.signals:
                store.images = np.array([images(node) for node in nodes.tolist()], np.int64)
        rules = _rules(configurations.of(int(nodes[0])), layout, main, parameters)
        if not rules.thresholds or not any(main in store.signals for store in mine):
            decision, what = ("unknown", "reading of") if rules.thresholds else ("calm", "threshold for")
            nothing = np.zeros(len(nodes), np.int64)
            rows.block(nodes, decision, "", f"no {what} {main}", nothing, kind.unit)
            continue
        played = _Played(rows, snapshot, nodes, mine, rules, kind, parameters.max_evictions)
        played.add_calm()
        for place in played.pressed:
            played.add(place)
    # Nodes with equal rules were computed together; their rows come in the order of the nodes.
    return rows.answer(sort=True)


class _Rules(NamedTuple):
    """Hold nodes' thresholds for the resource, their transition period in seconds, and their layout."""

    thresholds: list[Threshold]
    transition_period: float
    layout: Layout


class _Played:
    """Hold the courses of nodes with the same rules and stores, and the rows of each."""

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
        self._columns = snapshot.tables.columns
        self._signals = [store.signals for store in stores]
        places, distances = nearest(rules.thresholds, stores)
        above = [f"{threshold.signal} is above {threshold.value}" for threshold in rules.thresholds]
        self._nearest = coded(places, above), distances
        before = [store.capacity - store.available for store in stores]
        self._courses = Courses(
            stores,
            rules.thresholds,
            layout=rules.layout,
            transition_period=rules.transition_period,
            order=NodesPods(snapshot, nodes, kind.ranked).in_order,
            pods=snapshot.placed,
            max_evictions=max_evictions,
        ).found
        self._available = [store.available for store in stores]
        self._used = [
            (used, store.capacity - store.available) for used, store in zip(before, stores, strict=True)
        ]
        self.pressed = sorted(place for place, course in self._courses.items() if course.began is not None)
        """The nodes with pressure, as positions among the nodes."""

    def add_calm(self) -> None:
        """Add the rows of the nodes without pressure."""
        reasons, distances = self._nearest
        calm = np.ones(len(self._nodes), bool)
        calm[self.pressed] = False
        self._rows.block(
            self._nodes[calm], "calm", "", reasons.filter(pa.array(calm)), distances[calm], self._unit
        )

    def add(self, place: int) -> None:
        """Add the rows of one node with pressure."""
        rows, node, unit = self._rows, int(self._nodes[place]), self._unit
        found = self._courses[place]
        assert found.began is not None
        evicted = 0
        for step in found.steps:
            if isinstance(step, Evictions):
                evicted += len(step.pods)
                priority = self._columns.priority[step.pods].astype(np.int64)
                keys = priority << 3 | self._columns.qos[step.pods] << 1 | step.known
                rows.add_pods(node, "evict", AnswerPodRows(step.pods, keys, step.freed), unit)
                continue
            said = f"{step.threshold.signal} below {step.threshold.value}"
            if step.decision == "waits":
                rows.add(node, "waits", "", said, step.amount, "s")
            else:
                rows.add(node, "reclaim", "", "unused images", step.amount, unit)
        for signals, (used, left) in zip(self._signals, self._used, strict=True):
            rows.add_use(node, signals[0].partition(".")[0], int(used[place]), int(left[place]), unit)
        signal, value = found.began.signal, found.began.value
        if found.missing:
            reason = f"{signal} stays below {value} after {evicted} evicted"
            rows.add(node, "stuck", "", reason, found.missing, unit)
            return
        available = next(
            int(there[place])
            for there, signals in zip(self._available, self._signals, strict=True)
            if signal in signals
        )
        rows.add(node, "relieved", "", f"{signal} was below {value}: {evicted} evicted", available, unit)
        for condition, seconds in found.clears.items():
            rows.add(node, "clears", condition, "after the transition period", seconds, "s")


def _reason(standing: int) -> str:
    """Return the reason for an evicted pod from its priority, its class and, in the lowest bit, whether its
    use is known.
    """
    unknown = "" if standing & 1 else ", no statistics"
    return f"{QOS_NAMES[standing >> 1 & 3]}, priority {standing >> 3}{unknown}"


def _unused_images(
    snapshot: Snapshot, parameters: EvictParameters, configurations: NodeConfigurations, rows: Rows
) -> Callable[[int], int]:
    """Return bytes of a node's images that eviction may delete."""
    if parameters.resource != "disk" or not parameters.reclaim or not snapshot.images.num_rows:
        return lambda node: 0
    columns, starts = image_columns(snapshot, rows)
    now = float(snapshot.meta.get("taken_at", 0.0))

    def of(node: int) -> int:
        mine = image_slice(columns, int(starts[node]), int(starts[node + 1]))
        policy = ImageGCPolicy.from_config(configurations.of(node))
        spare = np.frombuffer(selection.spare(mine, policy, now), np.bool_)
        return int(mine.size[spare].sum())

    return of


def _rules(config: KubeletConfiguration, layout: Layout, signal: str, parameters: EvictParameters) -> _Rules:
    changed: dict[str, Any] = {}
    if parameters.threshold:
        hard = HARD_DEFAULTS if config.eviction_hard is None else config.eviction_hard
        changed["eviction_hard"] = hard | {signal: parameters.threshold}
    if parameters.soft:
        changed["eviction_soft"] = (config.eviction_soft or {}) | {signal: parameters.soft}
        graces = config.eviction_soft_grace_period or {}
        changed["eviction_soft_grace_period"] = graces | {signal: parameters.grace}
    config = copy.copy(config)  # msgspec's own replace would turn zeros into defaults
    for name, value in changed.items():
        setattr(config, name, value)
    thresholds = with_container_filesystem(thresholds_from_config(config), layout)
    wanted = KINDS[parameters.resource].signals
    mine = [threshold for threshold in thresholds if threshold.signal in wanted]
    return _Rules(mine, float(config.eviction_pressure_transition_period), layout)


def _usage(snapshot: Snapshot, parameters: EvictParameters, rows: Rows) -> Usage:
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


def _growing(growth: str) -> Callable[[NDArray[np.int64], NDArray[np.uint8]], NDArray[np.int64]]:
    if not growth:
        return lambda usage, known: usage
    if growth.endswith("%"):
        _share(np.zeros(0, np.int64), growth, "growth")
        return lambda usage, known: usage + _share(usage, growth, "growth")
    amount = _amount(growth, "growth")
    return lambda usage, known: usage + np.where(known == 1, amount, 0)


def _given(
    snapshot: Snapshot, parameters: EvictParameters, signal: str, rows: Rows
) -> tuple[str, Callable[[NDArray[np.int64]], NDArray[np.int64]]] | None:
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
    try:
        amount = Quantity.parse(text).value
    except InvalidInput as error:
        raise InvalidInput(error.message, subject=field) from None
    if not 0 <= amount <= MAX_AMOUNT:
        raise InvalidInput(f"expected 0 to {MAX_AMOUNT}, got {text}", subject=field)
    return amount


def _share(values: NDArray[np.int64], text: str, field: str) -> NDArray[np.int64]:
    """Return a percentage of integers, truncated, computed in integers only."""
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
