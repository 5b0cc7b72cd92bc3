"""Compute capacity and allocatable of a node under a configuration, as the kubelet registers them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.node import Node
from engine.api.quantity import ZERO, Quantity
from engine.api.resources import CPU, EPHEMERAL_STORAGE, HUGEPAGES_PREFIX, MEMORY, PODS
from engine.cgroups.formulas.allocatable import without_huge_pages
from engine.cgroups.formulas.settings import CgroupSettings

Amounts = Mapping[str, Quantity]


def settings_of(config: KubeletConfiguration, capacity: Amounts, version: int) -> CgroupSettings:
    """Return the cgroup settings of a node with this capacity. Raise `InvalidInput` naming a field."""
    machine = {name: amount for name, amount in capacity.items() if _is_the_machines(name)}
    return CgroupSettings.resolve(config, machine, cgroup_v2=version == 2)


def allocatable(config: KubeletConfiguration, capacity: Amounts, settings: CgroupSettings) -> Amounts:
    """Return what pods may request of the resources that the configuration can change."""
    found = without_huge_pages(settings.node.allocatable(), capacity)
    if not config.local_storage_capacity_isolation:
        found.pop(EPHEMERAL_STORAGE, None)
    most, per_core = config.max_pods, config.pods_per_core
    cores = capacity.get(CPU, ZERO).value
    found[PODS] = Quantity.from_value(min(most, cores * per_core) if per_core and cores else most)
    return found


def with_allocatable(node: Node, amounts: Amounts) -> Node:
    """Return the node with other allocatable amounts."""
    status = msgspec.structs.replace(node.status, allocatable=dict(amounts))
    return msgspec.structs.replace(node, status=status)


def changed(reported: Amounts, before: Amounts | None, after: Amounts) -> Amounts:
    """Return a node's allocatable after a change of its configuration.

    Adds to what the node reports the difference between both computed amounts, because a node may report
    less than its configuration says. Without `before`, the computed amounts replace the reported ones.
    """
    found = dict(reported)
    for name, amount in after.items():
        if before is not None and name in reported and name in before:
            amount = reported[name] + amount - before[name]
        found[name] = amount if amount > ZERO else ZERO
    for name in (before or {}).keys() - after.keys():
        found.pop(name, None)
    return found


def _is_the_machines(resource: str) -> bool:
    return resource in (CPU, MEMORY, EPHEMERAL_STORAGE) or resource.startswith(HUGEPAGES_PREFIX)
