"""Compute the cgroup values of all pods, containers and QoS levels of a snapshot.

The kernel of `engine.cgroups.formulas.bulk` does the arithmetic. The settings of a node without its amounts
are a `Profile`. A cluster has few distinct profiles, and the kernel runs once for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from engine._fast.cgroup_values import MAX_BYTES, MAX_MILLI, NODE_CRITICAL
from engine.api.amounts.cpu_weight import WeightFormula
from engine.api.qos import NODE_CRITICAL_PRIORITY
from engine.api.quantity import ZERO
from engine.api.resources import CPU, MEMORY
from engine.cgroups.formulas.allocatable import PID
from engine.cgroups.formulas.bulk import BulkCgroups, BulkValues, ContainerColumns
from engine.cgroups.formulas.containers import ContainerRules
from engine.cgroups.formulas.levels import LevelRules
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.formulas.values import GroupValues, PodRules
from engine.plan.answers.answer import Rows
from engine.plan.questions.configuration import NodeConfigurations
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.objects import template_pod
from engine.tables import HAS_PRIORITY

Column = NDArray[np.int64]


class Profile(NamedTuple):
    """Hold the cgroup settings of a node without its capacity and allocatable."""

    pods: PodRules
    containers: ContainerRules
    levels: LevelRules


@dataclass(frozen=True)
class CgroupColumns:
    """Hold the cgroup values of a cluster as columns.

    profile        int64[nodes]       the index in `profiles`
    values         as the kernel returns them: int64[5, pods], int64[7, containers], int64[7, nodes]
    owner          int64[containers]  the row of the pod
    names          string[containers] the name of the container
    capacity       int64[nodes]       milli-CPU, -1 unknown
    level_limited  bool[nodes]        whether `qosReserved` limits the memory of the QoS levels
    root           int64[nodes]       the index in `roots`, the values of the cgroup of all pods
    """

    profiles: list[Profile]
    profile: Column
    values: BulkValues
    owner: Column
    names: pa.Array
    capacity: Column
    level_limited: NDArray[np.bool_]
    roots: list[GroupValues]
    root: Column


def cgroup_columns(
    snapshot: Snapshot,
    configurations: NodeConfigurations,
    version: int,
    formula: WeightFormula,
    rows: Rows,
) -> CgroupColumns:
    """Compute the cgroup values of all placed pods under a cgroup version and a cpu.weight formula.

    Limits that are clamped are noted in `rows`. Raise `InvalidInput` for an invalid configuration.
    """
    cpu, memory = (_capacity(snapshot, name) for name in ("cpu", "memory"))
    nodes = _resolve(configurations, cpu, memory, snapshot.reading("pid_max"), version)
    containers, owner, names = _containers(snapshot)
    columns = msgspec.structs.replace(snapshot.tables.columns, limits=_bounded(snapshot.limits(), rows))
    count = snapshot.placed
    shapes = ((5, count), (7, len(owner)), (7, snapshot.node_count))
    found = BulkValues(*(np.zeros(shape, np.int64) for shape in shapes))
    limited = np.zeros(snapshot.node_count, np.bool_)
    for index, profile in enumerate(nodes.profiles):
        # The kernel computes every pod under this profile; the values of other nodes' pods are discarded.
        bulk = BulkCgroups(*profile, formula)
        out = bulk.values(columns, count, containers, np.maximum(memory, 0), nodes.allocatable)
        of_nodes = nodes.profile == index
        of_pods = of_nodes[columns.node[:count]]
        of_containers = of_pods[owner]
        found.pods[:, of_pods] = out.pods[:, of_pods]
        found.containers[:, of_containers] = out.containers[:, of_containers]
        found.levels[:, of_nodes] = out.levels[:, of_nodes]
        limited |= of_nodes & (profile.levels.reserved_percent is not None) & (nodes.allocatable > 0)
    return CgroupColumns(
        nodes.profiles, nodes.profile, found, owner, names, cpu, limited, nodes.roots, nodes.root
    )


class _NodeSettings(NamedTuple):
    """Hold the distinct profiles and root cgroups, and int64[nodes] each: the index of a node's profile, the
    bytes of memory that it can allocate, and the index of its root cgroup.
    """

    profiles: list[Profile]
    roots: list[GroupValues]
    profile: Column
    allocatable: Column
    root: Column


def _resolve(
    configurations: NodeConfigurations, cpu: Column, memory: Column, pids: Column, version: int
) -> _NodeSettings:
    """Return the settings of each node from its configuration and its capacity, int64[nodes] each."""
    index_of_profile: dict[Profile, int] = {}
    resolved: dict[tuple[str, int, int, int], tuple[int, int, int]] = {}
    roots: list[GroupValues] = []
    profile, allocatable, root = (np.zeros(len(cpu), np.int64) for _ in range(3))
    for node in range(len(cpu)):
        # Nodes with equal configurations and capacities, which are most, are resolved once.
        key = configurations.key(node), int(cpu[node]), int(memory[node]), int(pids[node])
        if key not in resolved:
            amounts = dict(zip((CPU, MEMORY, PID), key[1:], strict=True))
            settings = CgroupSettings.resolve(
                configurations.of(node),
                {name: amount for name, amount in amounts.items() if amount >= 0},
                cgroup_v2=version == 2,
            )
            index = index_of_profile.setdefault(_profile(settings), len(index_of_profile))
            resolved[key] = index, settings.node.allocatable().get(MEMORY, ZERO).value, len(roots)
            roots.append(settings.root_values())
        profile[node], allocatable[node], root[node] = resolved[key]
    return _NodeSettings(list(index_of_profile), roots, profile, allocatable, root)


def _profile(settings: CgroupSettings) -> Profile:
    """Return the settings with their amounts set to 0, so that nodes of different sizes compare equal."""
    return Profile(
        settings.pods,
        msgspec.structs.replace(settings.containers, memory_capacity=0, allocatable_memory=0),
        msgspec.structs.replace(settings.levels, allocatable_memory=None),
    )


def _capacity(snapshot: Snapshot, resource: str) -> Column:
    """Return int64[nodes]: the capacity, or allocatable where a node does not report it."""
    capacity = snapshot.allocatable(resource, "capacity")
    known: Column = np.where(capacity < 0, snapshot.allocatable(resource), capacity)
    return known


def _bounded(limits: Column, rows: Rows) -> Column:
    """Return the limits, int64[3, pods], clamped to the range of the kernel; note how many pods are
    concerned.
    """
    bounds = np.array([[MAX_MILLI], [MAX_BYTES], [MAX_BYTES]])
    beyond = int((limits > bounds).any(axis=0).sum())
    if not beyond:
        return limits
    rows.note(
        f"pods with a limit beyond {MAX_BYTES} bytes or {MAX_MILLI} milli-CPU, treated as that limit", beyond
    )
    bounded: Column = np.minimum(limits, bounds)
    return bounded


def _containers(snapshot: Snapshot) -> tuple[ContainerColumns, Column, pa.Array]:
    """Return the containers of all placed pods, the row of the pod of each, and their names.

    Each template is decoded once, and its containers are repeated for each of its pods.
    """
    template, qos = snapshot.column("template"), snapshot.column("qos")
    used, number = np.unique(template, return_inverse=True)
    specs = snapshot.templates["spec"].take(pa.array(used)).to_pylist()
    pods = [template_pod(spec, 0) for spec in specs]
    of = ContainerColumns.of(pods)
    names = pa.array([c.name for pod in pods for c in pod.all_containers], pa.large_string())
    counts = np.diff(of.offsets)[number]
    source = spread(of.offsets[:-1][number], counts)
    owner = np.repeat(np.arange(len(qos)), counts)
    flags, priority = snapshot.column("flags"), snapshot.column("priority")
    critical = ((flags & HAS_PRIORITY) != 0) & (priority == NODE_CRITICAL_PRIORITY)
    columns = ContainerColumns(
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        cpu_request=of.cpu_request[source],
        cpu_limit=np.minimum(of.cpu_limit[source], MAX_MILLI),
        memory_request=of.memory_request[source],
        memory_limit=np.minimum(of.memory_limit[source], MAX_BYTES),
        oom_request=of.oom_request[source],
        kind=(of.kind[source] | np.where(critical[owner], NODE_CRITICAL, 0)).astype(np.uint8),
        limited=of.limited[number],
    )
    return columns, owner, pc.take(names, pa.array(source))


def spread(starts: Column, counts: Column) -> Column:
    """Return int64[sum of counts]: `counts[i]` consecutive numbers from `starts[i]` on, for each i in
    order.
    """
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
