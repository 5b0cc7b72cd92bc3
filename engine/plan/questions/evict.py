"""evict: who goes first under memory, disk or PID pressure, and when it is over.

Per node `eviction_course` plays the agent's own decisions until nothing is due: thresholds hard and soft
(`engine.eviction.thresholds`), merged and timed by `engine.eviction.pressure`, pods in the order of
`engine.tables.eviction`. As on a node one pod goes at a time and critical pods stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.eviction_amounts import HARD_DEFAULTS
from engine.api.quantity import Quantity
from engine.eviction.layout import CONTAINERFS, Layout, with_container_filesystem
from engine.eviction.signals import IMAGEFS_AVAILABLE
from engine.eviction.thresholds import Threshold, thresholds_from_config
from engine.images import selection
from engine.images.policy import ImageGCPolicy
from engine.plan.answers.answer import Answer, PodRows, Rows
from engine.plan.questions.configuration import NodeConfigurations
from engine.plan.questions.eviction_course import Evictions, Store, Usage, course, nearest
from engine.plan.questions.image_columns import image_columns, image_slice
from engine.plan.questions.node_stores import KINDS, NodeStores, Resource
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.schema import MAX_AMOUNT
from engine.tables import CRITICAL, MIRROR, QOS_NAMES, STATIC
from engine.tables.eviction import eviction_order


class EvictParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What evict takes."""

    resource: Annotated[Resource, Meta(description="memory, disk, inodes or processes")] = "memory"
    signal: Annotated[
        str,
        Meta(
            description="the signal that available, threshold and soft mean, such as imagefs.available; "
            "the resource's first if not said"
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
    grace: Annotated[str, Meta(description="how long the soft threshold may be met: 90s")] = "90s"
    config: Annotated[str, Meta(description="a KubeletConfiguration for every node")] = ""
    changes: Annotated[dict[str, Any], Meta(description="fields laid over the configuration")] = {}
    reclaim: Annotated[bool, Meta(description="disk: remove unused images before pods")] = True
    max_evictions: Annotated[int, Meta(description="stop after so many evictions a node", ge=1)] = 1000


def evict(snapshot: Snapshot, parameters: EvictParameters) -> Answer:
    """Per node `calm` (amount: the distance to the nearest threshold), `relieved` (available in the end),
    `stuck` (still missing) or `unknown`. Before that `waits` per grace period that runs out (seconds),
    `reclaim` for unused images, and `evict` per pod in order, with what it frees; after it `clears` per node
    condition (seconds from the beginning). `used-before` and `used-after` per memory, file system or process
    ids of a node under pressure.
    """
    rows = Rows(snapshot.node_names, snapshot.pod_labels, _reason)
    kind = KINDS[parameters.resource]
    main = parameters.signal or kind.signals[0]
    if main not in kind.signals:
        raise InvalidInput(f"expected one of {', '.join(kind.signals)}, got {main!r}", subject="signal")
    if main.startswith(CONTAINERFS) and (parameters.threshold or parameters.soft):
        raise InvalidInput("follows the file system that it lies on: name nodefs or imagefs", subject=main)
    configurations = NodeConfigurations(snapshot, parameters.config, parameters.changes)
    configurations.note(rows)
    stores = NodeStores(
        snapshot,
        parameters.resource,
        configurations,
        _usage(snapshot, parameters, rows),
        _growing(parameters.growth),
        _given(parameters, main, rows),
        rows,
    )
    images = _unused_images(snapshot, parameters, configurations, rows)
    standing = snapshot.tables.columns.priority.astype(np.int64) << 3 | snapshot.tables.columns.qos << 1
    rules: dict[tuple[str, Layout], tuple[list[Threshold], float]] = {}
    for node in range(snapshot.node_count):
        layout = stores.layouts[node]
        key = configurations.key(node), layout
        if key not in rules:
            rules[key] = _rules(configurations.of(node), layout, main, parameters)
        thresholds, transition_period = rules[key]
        mine = stores.of(node)
        for store in mine:
            store.images = images(node) if IMAGEFS_AVAILABLE in store.signals else 0
        if not thresholds:
            rows.add(node, "calm", "", f"no threshold for {main}", 0, kind.unit)
        elif not any(main in store.signals for store in mine):
            rows.add(node, "unknown", "", f"no reading of {main}", 0, kind.unit)
        else:
            _play(rows, snapshot, node, mine, thresholds, transition_period, layout, parameters, standing)
    return rows.answer()


def _play(
    rows: Rows,
    snapshot: Snapshot,
    node: int,
    stores: Sequence[Store],
    thresholds: Sequence[Threshold],
    transition_period: float,
    layout: Layout,
    parameters: EvictParameters,
    standing: NDArray[np.int64],
) -> None:
    kind = KINDS[parameters.resource]
    columns = snapshot.tables.columns
    first = int(snapshot.offsets[node])
    mine = np.arange(first, snapshot.offsets[node + 1], dtype=np.int32)

    def order(use: Usage) -> NDArray[np.int64]:
        ranked = eviction_order(columns, mine, kind.ranked, *use)
        stays = columns.flags[ranked] & (STATIC | MIRROR | CRITICAL)
        places: NDArray[np.int64] = ranked[stays == 0].astype(np.int64) - first
        return places

    before = [store.available for store in stores]
    found = course(
        stores,
        thresholds,
        layout=layout,
        transition_period=transition_period,
        order=order,
        max_evictions=parameters.max_evictions,
    )
    if found.began is None:
        threshold, distance = nearest(thresholds, stores) or (thresholds[0], 0)
        rows.add(node, "calm", "", f"{threshold.signal} is above {threshold.value}", distance, kind.unit)
        return
    evicted = 0
    for step in found.steps:
        if isinstance(step, Evictions):
            evicted += len(step.pods)
            pods = first + step.pods
            rows.add_pods(node, "evict", PodRows(pods, standing[pods] | step.known, step.freed), kind.unit)
            continue
        said = f"{step.threshold.signal} below {step.threshold.value}"
        if step.decision == "waits":
            rows.add(node, "waits", "", said, step.amount, "s")
        else:
            rows.add(node, "reclaim", "", "unused images", step.amount, kind.unit)
    for store, available in zip(stores, before, strict=True):
        used, left = store.capacity - available, store.capacity - store.available
        rows.add_use(node, store.signals[0].partition(".")[0], used, left, kind.unit)
    signal, value = found.began.signal, found.began.value
    if found.missing:
        reason = f"{signal} stays below {value} after {evicted} evicted"
        rows.add(node, "stuck", "", reason, found.missing, kind.unit)
        return
    left = next(store.available for store in stores if signal in store.signals)
    rows.add(node, "relieved", "", f"{signal} was below {value}: {evicted} evicted", left, kind.unit)
    for condition, seconds in found.clears.items():
        rows.add(node, "clears", condition, "after the transition period", seconds, "s")


def _reason(standing: int) -> str:
    """What is said of an evicted pod, by its priority, its class and, the lowest bit, whether its use is
    known."""
    unknown = "" if standing & 1 else ", no statistics"
    return f"{QOS_NAMES[standing >> 1 & 3]}, priority {standing >> 3}{unknown}"


def _unused_images(
    snapshot: Snapshot, parameters: EvictParameters, configurations: NodeConfigurations, rows: Rows
) -> Callable[[int], int]:
    """Bytes of a node's images that eviction may delete."""
    if parameters.resource != "disk" or not parameters.reclaim or not snapshot.images.num_rows:
        return lambda node: 0
    columns, starts = image_columns(snapshot, rows)
    now = float(snapshot.meta.get("taken_at", 0.0))

    def of(node: int) -> int:
        mine = image_slice(columns, int(starts[node]), int(starts[node + 1]))
        policy = ImageGCPolicy.from_config(configurations.of(node))
        return int(mine.size[selection.spare(mine, policy, now)].sum())

    return of


def _rules(
    config: KubeletConfiguration, layout: Layout, signal: str, parameters: EvictParameters
) -> tuple[list[Threshold], float]:
    """A node's thresholds for the resource, and its transition period in seconds."""
    changed: dict[str, Any] = {}
    if parameters.threshold:
        hard = HARD_DEFAULTS if config.eviction_hard is None else config.eviction_hard
        changed["eviction_hard"] = hard | {signal: parameters.threshold}
    if parameters.soft:
        changed["eviction_soft"] = (config.eviction_soft or {}) | {signal: parameters.soft}
        graces = config.eviction_soft_grace_period or {}
        changed["eviction_soft_grace_period"] = graces | {signal: parameters.grace}
    config = msgspec.structs.replace(config, **changed)
    thresholds = with_container_filesystem(thresholds_from_config(config), layout)
    wanted = KINDS[parameters.resource].signals
    return [t for t in thresholds if t.signal in wanted], float(config.eviction_pressure_transition_period)


def _usage(snapshot: Snapshot, parameters: EvictParameters, rows: Rows) -> Usage:
    usage, known = snapshot.usage(parameters.resource)
    missing = int(len(known) - known.sum())
    if missing and parameters.use:
        name = {"memory": "memory", "disk": "ephemeral-storage"}.get(parameters.resource)
        if name is None:
            raise InvalidInput("pods request no inodes or processes", subject="use")
        assumed = _share(snapshot.per_pod(f"ranking/{name}"), parameters.use, "use")
        rows.note(f"pods without statistics, taken to use {parameters.use} of their request", missing)
        return np.where(known == 1, usage, assumed), np.ones(len(usage), np.uint8)
    if missing:
        rows.note("pods without statistics: they go first and free nothing known", missing)
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
    parameters: EvictParameters, signal: str, rows: Rows
) -> tuple[str, Callable[[NDArray[np.int64]], NDArray[np.int64]]] | None:
    text = parameters.available
    if not text:
        return None
    rows.note(f"every node is taken to have {text} available before the growth")
    if text.endswith("%"):
        return signal, lambda capacity: _share(capacity, text, "available")
    amount = _amount(text, "available")
    return signal, lambda capacity: np.full(len(capacity), amount, np.int64)


def _amount(text: str, field: str) -> int:
    amount = Quantity.parse(text).value
    if abs(amount) > MAX_AMOUNT:
        raise InvalidInput(f"expected at most {MAX_AMOUNT}, got {text}", subject=field)
    return amount


def _share(values: NDArray[np.int64], text: str, field: str) -> NDArray[np.int64]:
    """A percentage of integers, truncated, without leaving integers."""
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
