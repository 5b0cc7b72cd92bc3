"""Compute how many more GPUs or other devices each node can allocate under a topology policy.

The kubelet's own policy decides (`engine.topologymanager.policy`). Its input is the number of devices per
NUMA node in the snapshot, or allocatable minus requests if no device is known by name.
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
    """Return for each node with the resource `free` (amount: healthy devices that no pod has).

    For each count follows `fits` (amount: how often it can be allocated, one after another), `fragmented`
    (enough devices are free, but the policy refuses) or `full`.
    """
    rows = Rows(snapshot.node_names)
    resource = parameters.resource or _only_resource(snapshot)
    groups = device_groups(snapshot, resource)
    allocatable = snapshot.allocatable(resource)
    requested = _requested(snapshot, resource)
    unnamed = 0
    for node in range(snapshot.node_count):
        known = groups.get(node)
        if known is None:
            if allocatable[node] <= 0:
                continue
            unnamed += 1
            free = max(int(allocatable[node] - requested[node]), 0)
            known = {0: (int(allocatable[node]), free)}
        _add_node(rows, node, known, parameters)
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
        offered = [name for name in snapshot.resources.names if (snapshot.allocatable(name) > 0).any()]
        raise InvalidInput(
            f"no node has {resource}{nearest(resource, [*named, *offered])}", subject="resource"
        )
    return []


def _add_node(
    rows: Rows, node: int, groups: dict[int, tuple[int, int]], parameters: DevicesParameters
) -> None:
    """Add the rows of a node; `groups` maps a NUMA mask to (devices, free ones)."""
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
    """Return how often the request can be allocated in succession, and the NUMA nodes of the first time."""
    # Without any NUMA node there are no hints, and every policy admits.
    if not any(counts.groups):
        return sum(counts.available) // counts.request, "any NUMA node"
    times, first = 0, ""
    while sum(counts.available) >= counts.request:
        decision = policy.decide([{"device": counts}])
        if not decision.admit:
            break
        mask = decision.hint.mask
        first = first or (numa_text(mask) if mask is not None else "any NUMA node")
        counts = replace(counts, available=left_after_request(counts, mask))
        times += 1
    return times, first


def left_after_request(counts: DeviceCounts, mask: int | None) -> tuple[int, ...]:
    """Return how many devices of each group are left after one request, which takes aligned devices first.

    `mask` is the hint of the topology manager; with None, every group is aligned.
    """
    left = counts.request
    available = list(counts.available)
    aligned = [i for i, group in enumerate(counts.groups) if mask is None or group & mask]
    for index in [*aligned, *(i for i in range(len(available)) if i not in aligned)]:
        taken = min(left, available[index])
        available[index] -= taken
        left -= taken
    return tuple(available)


def device_groups(snapshot: Snapshot, resource: str) -> dict[int, dict[int, tuple[int, int]]]:
    """Map a node and a NUMA mask, in which bit N is NUMA node N, to (devices, healthy devices without a
    pod).
    """
    table = snapshot.devices
    found: dict[int, dict[int, tuple[int, int]]] = {}
    columns: Sequence[list[object]] = [
        table[name].to_pylist() for name in ("node", "resource", "numa", "healthy", "pod_uid")
    ]
    for node, name, numa, healthy, owner in zip(*columns, strict=True):
        if name != resource:
            continue
        mask = sum(1 << int(part) for part in str(numa).split(",") if part)
        of_node = found.setdefault(int(str(node)), {})
        everything, free = of_node.get(mask, (0, 0))
        of_node[mask] = (everything + 1, free + (1 if healthy and not owner else 0))
    return found


def _requested(snapshot: Snapshot, resource: str) -> NDArray[np.int64]:
    """Return int64[nodes]: the sum of the pods' requests for a resource."""
    if resource not in snapshot.resources.ids:
        return np.zeros(snapshot.node_count, np.int64)
    sums = np.concatenate([[0], np.cumsum(snapshot.per_pod(f"request/{resource}"))])
    return np.diff(sums[snapshot.offsets])


def _only_resource(snapshot: Snapshot) -> str:
    """Return the only extended resource of the snapshot. Raise `InvalidInput` if there is none or several."""
    offered = [
        name
        for name in snapshot.resources.names
        if is_extended(name) and (snapshot.allocatable(name) > 0).any()
    ]
    if len(offered) != 1:
        found = ", ".join(offered) or "none"
        raise InvalidInput(f"name one of the extended resources (found: {found})", subject="resource")
    return offered[0]


def numa_ids(mask: int) -> tuple[int, ...]:
    """Return the NUMA nodes of a mask in which bit N stands for node N."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def numa_text(mask: int) -> str:
    """Return the NUMA nodes of a mask as text, such as `NUMA 0+1`."""
    nodes = numa_ids(mask)
    return f"NUMA {'+'.join(map(str, nodes))}" if nodes else "no NUMA node"
