"""evict: who goes first under memory, disk or PID pressure, and when it is over.

Thresholds are the node's own (`engine.eviction.thresholds`), the order is `engine.tables.eviction` over the
node's rows. As the agent does, one pod goes at a time, critical pods stay, and it ends when what is available
covers the threshold and its minimum reclaim.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.api.quantity import Quantity
from engine.eviction import signals
from engine.eviction.thresholds import Threshold, thresholds_from_config
from engine.images import selection
from engine.images.policy import ImageGCPolicy
from engine.plan.answers import Answer, Rows
from engine.plan.configuration import NodeConfigurations
from engine.plan.image_columns import image_columns, image_slice
from engine.plan.snapshot import Snapshot
from engine.tables import CRITICAL, MIRROR, QOS_NAMES, STATIC
from engine.tables.eviction import Ranked, eviction_order

Resource = Literal["memory", "disk", "inodes", "processes"]


class _Kind(msgspec.Struct, frozen=True):
    signal: str
    ranked: Ranked
    available: tuple[str, ...]
    capacity: tuple[str, ...]
    unit: str


KINDS: dict[Resource, _Kind] = {
    "memory": _Kind(signals.MEMORY_AVAILABLE, "memory", ("memory_available",), ("memory_capacity",), "bytes"),
    "disk": _Kind(
        signals.NODEFS_AVAILABLE, "ephemeral-storage", ("nodefs_available",), ("nodefs_capacity",), "bytes"
    ),
    "inodes": _Kind(
        signals.NODEFS_INODES_FREE, "inodes", ("nodefs_inodes_free",), ("nodefs_inodes",), "inodes"
    ),
    "processes": _Kind(signals.PID_AVAILABLE, "processes", (), ("pid_max",), "processes"),
}


class EvictParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What evict takes."""

    resource: Annotated[Resource, Meta(description="memory, disk, inodes or processes")] = "memory"
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
    config: Annotated[str, Meta(description="a KubeletConfiguration for every node")] = ""
    changes: Annotated[dict[str, Any], Meta(description="fields laid over the configuration")] = {}
    reclaim: Annotated[bool, Meta(description="disk: remove unused images before pods")] = True
    max_evictions: Annotated[int, Meta(description="stop after so many evictions a node", ge=1)] = 1000


def evict(snapshot: Snapshot, parameters: EvictParameters) -> Answer:
    """Per node `calm` (amount: the distance to the threshold), `relieved` (available in the end), `stuck`
    (still missing) or `unknown`; per pod `evict` in order, with what it frees. Disk pressure removes unused
    images first: `reclaim`.
    """
    kind = KINDS[parameters.resource]
    rows = Rows(snapshot.node_names)
    configurations = NodeConfigurations(snapshot, parameters.config, parameters.changes)
    configurations.note(rows)
    capacity, available = _node_readings(snapshot, parameters, kind, rows)
    usage, known = _usage(snapshot, parameters, rows)
    grown = _grown(usage, known, parameters.growth)
    added = np.add.reduceat(np.append(grown - usage, 0), snapshot.offsets[:-1]) if len(usage) else usage
    added = np.where(np.diff(snapshot.offsets) > 0, added, 0) if len(usage) else np.zeros_like(available)
    reclaimable = _reclaimable(snapshot, parameters, configurations, rows)
    thresholds: dict[str, Threshold | None] = {}
    for node in range(snapshot.node_count):
        key = configurations.key(node)
        if key not in thresholds:
            thresholds[key] = _threshold(configurations, node, kind.signal, parameters.threshold)
        threshold = thresholds[key]
        if threshold is None:
            rows.add(node, "calm", "", f"no threshold for {kind.signal}", 0, kind.unit)
        elif capacity[node] <= 0 or available[node] < 0:
            rows.add(node, "unknown", "", f"no reading of {kind.signal}", 0, kind.unit)
        else:
            left = int(available[node]) - int(added[node])
            if left < threshold.limit(int(capacity[node])) and reclaimable[node]:
                rows.add(node, "reclaim", "", "unused images", int(reclaimable[node]), kind.unit)
                left += int(reclaimable[node])
            reading = (int(capacity[node]), left)
            _relieve(rows, snapshot, node, threshold, reading, (grown, known), parameters, kind)
    return rows.answer()


def _relieve(
    rows: Rows,
    snapshot: Snapshot,
    node: int,
    threshold: Threshold,
    reading: tuple[int, int],
    use: tuple[NDArray[np.int64], NDArray[np.uint8]],
    parameters: EvictParameters,
    kind: _Kind,
) -> None:
    capacity, available = reading
    met, cleared = threshold.limit(capacity), threshold.limit(capacity, reclaimed=True)
    if available >= met:
        rows.add(node, "calm", "", f"{kind.signal} is above {threshold.value}", available - met, kind.unit)
        return
    mine = np.arange(snapshot.offsets[node], snapshot.offsets[node + 1], dtype=np.int32)
    usage, known = use[0][mine], use[1][mine]
    order = eviction_order(snapshot.tables.columns, mine, kind.ranked, usage, known)
    evicted = 0
    flags, qos = snapshot.tables.columns.flags, snapshot.tables.columns.qos
    for row in order.tolist():
        if available >= cleared or evicted == parameters.max_evictions:
            break
        if flags[row] & (STATIC | MIRROR | CRITICAL):
            continue
        amount = int(use[0][row]) if use[1][row] else 0
        available += amount
        evicted += 1
        priority = int(snapshot.tables.columns.priority[row])
        reason = f"{QOS_NAMES[qos[row]]}, priority {priority}" + ("" if use[1][row] else ", no statistics")
        rows.add(node, "evict", snapshot.pod_label(row), reason, amount, kind.unit)
    if available >= cleared:
        reason = f"{kind.signal} was below {threshold.value}: {evicted} evicted"
        rows.add(node, "relieved", "", reason, available, kind.unit)
    else:
        reason = f"{kind.signal} stays below {threshold.value} after {evicted} evicted"
        rows.add(node, "stuck", "", reason, cleared - available, kind.unit)


def _reclaimable(
    snapshot: Snapshot, parameters: EvictParameters, configurations: NodeConfigurations, rows: Rows
) -> NDArray[np.int64]:
    """Bytes of images that eviction may delete, where images and pods share a file system."""
    found = np.zeros(snapshot.node_count, np.int64)
    if parameters.resource != "disk" or not parameters.reclaim or not snapshot.images.num_rows:
        return found
    columns, starts = image_columns(snapshot, rows)
    shared = snapshot.reading("imagefs_capacity", "nodefs_capacity") == snapshot.reading("nodefs_capacity")
    now = float(snapshot.meta.get("taken_at", 0.0))
    for node in np.flatnonzero(shared).tolist():
        mine = image_slice(columns, int(starts[node]), int(starts[node + 1]))
        policy = ImageGCPolicy.from_config(configurations.of(node))
        found[node] = mine.size[selection.spare(mine, policy, now)].sum()
    return found


def _threshold(configurations: NodeConfigurations, node: int, signal: str, given: str) -> Threshold | None:
    config = configurations.of(node)
    if given:
        config = msgspec.structs.replace(config, eviction_hard={signal: given}, eviction_soft=None)
    found = [t for t in thresholds_from_config(config) if t.signal == signal]
    return next((t for t in found if t.hard), found[0] if found else None)


def _usage(
    snapshot: Snapshot, parameters: EvictParameters, rows: Rows
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    column = snapshot.pods[f"usage/{parameters.resource}"].slice(0, snapshot.placed)
    known = column.is_valid().to_numpy().astype(np.uint8)
    usage: NDArray[np.int64] = column.fill_null(0).to_numpy()
    missing = int(len(known) - known.sum())
    if missing and parameters.use:
        name = {"memory": "memory", "disk": "ephemeral-storage"}.get(parameters.resource)
        if name is None:
            raise InvalidInput("pods request no inodes or processes", subject="use")
        request = snapshot.per_pod(f"ranking/{name}")
        assumed = _share(request, parameters.use, "use")
        usage = np.where(known == 1, usage, assumed)
        known = np.ones(len(usage), np.uint8)
        rows.note(f"pods without statistics, taken to use {parameters.use} of their request", missing)
    elif missing:
        rows.note("pods without statistics: they go first and free nothing known", missing)
    return usage, known


def _grown(usage: NDArray[np.int64], known: NDArray[np.uint8], growth: str) -> NDArray[np.int64]:
    if not growth:
        return usage
    if growth.endswith("%"):
        return usage + _share(usage, growth, "growth")
    return usage + np.where(known == 1, Quantity.parse(growth).value, 0)


def _share(values: NDArray[np.int64], text: str, field: str) -> NDArray[np.int64]:
    """A percentage of integers, truncated, without leaving integers."""
    try:
        percent = Quantity.parse(text.removesuffix("%"))
    except InvalidInput:
        percent = Quantity(-1)
    if not text.endswith("%") or percent.nano < 0 or percent.value > 1_000_000:
        raise InvalidInput(f"expected a percentage such as 20%, got {text!r}", subject=field)
    milli = percent.milli
    share: NDArray[np.int64] = values // 100_000 * milli + values % 100_000 * milli // 100_000
    return share


def _node_readings(
    snapshot: Snapshot, parameters: EvictParameters, kind: _Kind, rows: Rows
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    capacity = snapshot.reading(*kind.capacity)
    substitute = {"memory": "memory", "disk": "ephemeral-storage"}.get(parameters.resource)
    if substitute and (capacity < 0).any():
        capacity = np.where(capacity < 0, snapshot.allocatable(substitute, "capacity"), capacity)
    if parameters.available:
        text = parameters.available
        if text.endswith("%"):
            available = _share(capacity, text, "available")
        else:
            available = np.full(snapshot.node_count, Quantity.parse(text).value, np.int64)
        rows.note(f"every node is taken to have {text} available before the growth")
        return capacity, available
    if parameters.resource == "processes":
        used = snapshot.reading("pid_used")
        return capacity, np.where(used < 0, -1, capacity - used)
    return capacity, snapshot.reading(*kind.available)
