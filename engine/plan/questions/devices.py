"""Compute the fragmentation of GPUs and other devices: can N more be allocated under a topology policy, and
where?

The node's own policy decides (`engine.topologymanager.policy`). Its input is counted per NUMA node from the
snapshot's devices, or from allocatable minus requests if no device is known by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.api.documents.nearest import nearest
from engine.api.errors import InvalidInput
from engine.api.resources import is_extended
from engine.plan.answers.answer import Answer, Rows
from engine.plan.snapshot.columns import Snapshot
from engine.topologymanager.policy import Numa, TopologyPolicy
from engine.topologymanager.search import DeviceCounts


class DevicesParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of devices."""

    resource: Annotated[str, Meta(description="the resource; none: the only extended resource")] = ""
    counts: Annotated[
        list[Annotated[int, Meta(ge=1)]], Meta(description="how many devices one container asks for")
    ] = msgspec.field(default_factory=lambda: [1, 2, 4, 8])
    policy: Annotated[
        Literal["none", "best-effort", "restricted", "single-numa-node"],
        Meta(description="topology policy: none, best-effort, restricted or single-numa-node"),
    ] = "single-numa-node"


def devices(snapshot: Snapshot, parameters: DevicesParameters) -> Answer:
    """Return per node with the resource: `free` (healthy and unassigned), then for each count `fits` (how
    often it can be allocated, one after another), `fragmented` (enough are free, the policy refuses) or
    `full`.
    """
    rows = Rows(snapshot.node_names)
    resource = parameters.resource or _only_resource(snapshot)
    groups = device_groups(snapshot, resource)
    counted = snapshot.allocatable(resource)
    requested = _requested(snapshot, resource)
    unnamed = 0
    for node in range(snapshot.node_count):
        known = groups.get(node)
        if known is None:
            if counted[node] <= 0:
                continue
            unnamed += 1
            free = max(int(counted[node] - requested[node]), 0)
            known = {0: (int(counted[node]), free)}
        _node(rows, node, known, parameters)
    if unnamed:
        rows.note(
            "nodes whose devices are not known individually: free is allocatable minus requests", unnamed
        )
    return rows.answer()


def check_devices(snapshot: Snapshot, parameters: DevicesParameters) -> list[str]:
    """Raise `InvalidInput` for a resource that no node has."""
    resource = parameters.resource or _only_resource(snapshot)
    named = {str(name) for name in snapshot.devices["resource"].unique().to_pylist()}
    if resource not in named and not (snapshot.allocatable(resource) > 0).any():
        there = [name for name in snapshot.resources.names if (snapshot.allocatable(name) > 0).any()]
        raise InvalidInput(f"no node has {resource}{nearest(resource, [*named, *there])}", subject="resource")
    return []


def _node(rows: Rows, node: int, groups: dict[int, tuple[int, int]], parameters: DevicesParameters) -> None:
    masks = tuple(sorted(groups))
    everything = tuple(groups[mask][0] for mask in masks)
    free = tuple(groups[mask][1] for mask in masks)
    nodes = max(1, *(mask.bit_length() for mask in masks))
    numa = Numa(tuple(range(nodes)))
    policy = TopologyPolicy.from_config(parameters.policy, "container", None, numa)
    where = ", ".join(f"{numa_text(mask)}: {count}" for mask, count in zip(masks, free, strict=True))
    rows.add(node, "free", "", where, sum(free), "devices")
    for count in parameters.counts:
        object = f"{count} devices"
        times, first = _times(policy, DeviceCounts(masks, everything, free, (0,) * len(masks), count))
        if times:
            rows.add(node, "fits", object, f"first on {first}", times, "times")
        elif sum(free) >= count:
            rows.add(
                node, "fragmented", object, f"{parameters.policy} refuses ({where})", sum(free), "devices"
            )
        else:
            rows.add(node, "full", object, f"{sum(free)} free", sum(free), "devices")


def _times(policy: TopologyPolicy, counts: DeviceCounts) -> tuple[int, str]:
    """Return how often the request can be met in succession, and the NUMA nodes of the first time."""
    if not any(counts.groups):
        return sum(counts.available) // counts.request, "any NUMA node"
    times, first = 0, ""
    while sum(counts.available) >= counts.request:
        decision = policy.decide([{"device": counts}])
        if not decision.admit:
            break
        mask = decision.hint.mask
        first = first or (numa_text(mask) if mask is not None else "any NUMA node")
        counts = replace(counts, available=taken_devices(counts, mask))
        times += 1
    return times, first


def taken_devices(counts: DeviceCounts, mask: int | None) -> tuple[int, ...]:
    """Return the devices that are left of each group after one request, aligned devices first."""
    left = counts.request
    available = list(counts.available)
    aligned = [i for i, group in enumerate(counts.groups) if mask is None or group & mask]
    for index in [*aligned, *(i for i in range(len(available)) if i not in aligned)]:
        taken = min(left, available[index])
        available[index] -= taken
        left -= taken
    return tuple(available)


def device_groups(snapshot: Snapshot, resource: str) -> dict[int, dict[int, tuple[int, int]]]:
    """Map node → NUMA mask → (devices, healthy and free ones)."""
    table = snapshot.devices
    found: dict[int, dict[int, tuple[int, int]]] = {}
    columns: Sequence[list[object]] = [
        table[name].to_pylist() for name in ("node", "resource", "numa", "healthy", "pod_uid")
    ]
    for node, name, numa, healthy, owner in zip(*columns, strict=True):
        if name != resource:
            continue
        mask = sum(1 << int(part) for part in str(numa).split(",") if part)
        mine = found.setdefault(int(str(node)), {})
        everything, free = mine.get(mask, (0, 0))
        mine[mask] = (everything + 1, free + (1 if healthy and not owner else 0))
    return found


def _requested(snapshot: Snapshot, resource: str) -> NDArray[np.int64]:
    if resource not in snapshot.resources.ids:
        return np.zeros(snapshot.node_count, np.int64)
    sums = np.concatenate([[0], np.cumsum(snapshot.per_pod(f"request/{resource}"))])
    return np.diff(sums[snapshot.offsets])


def _only_resource(snapshot: Snapshot) -> str:
    offered = [
        name
        for name in snapshot.resources.names
        if is_extended(name) and (snapshot.allocatable(name) > 0).any()
    ]
    if len(offered) != 1:
        found = ", ".join(offered) or "none"
        raise InvalidInput(f"name one of the extended resources (found: {found})", subject="resource")
    return offered[0]


def numa_text(mask: int) -> str:
    nodes = [str(i) for i in range(mask.bit_length()) if mask >> i & 1]
    return f"NUMA {'+'.join(nodes)}" if nodes else "no NUMA node"
