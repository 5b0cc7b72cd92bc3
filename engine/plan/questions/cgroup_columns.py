"""Compute the cgroup values of a snapshot's pods, containers and QoS levels.

The kernel behind `engine.cgroups.formulas.bulk` does the arithmetic. A node's settings apart from amounts
form a `Profile`; there are few, and the kernel runs once for each.
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
    """Hold a node's settings without its amounts."""

    pods: PodRules
    containers: ContainerRules
    levels: LevelRules


@dataclass(frozen=True)
class CgroupColumns:
    """Hold the cgroup values of a cluster as columns.

    profile     int64[nodes]   which of `profiles` a node has
    values         as the kernel gives them: int64[5, pods], int64[7, containers], int64[7, nodes]
    owner          int64[containers]  the pod's row; `names` are the containers' own
    capacity       int64[nodes]   milli-CPU, -1 unknown
    level_limited  bool[nodes]    whether a reservation limits the levels' memory
    root           int64[nodes]   which of `roots`, the values of the cgroup of all pods, a node has
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
    """Compute the values of every placed pod. Raise `InvalidInput` for an invalid configuration."""
    nodes = snapshot.node_count
    cpu, memory = (_capacity(snapshot, name) for name in ("cpu", "memory"))
    number: dict[Profile, int] = {}
    pids = snapshot.reading("pid_max")
    resolved: dict[tuple[str, int, int, int], tuple[int, int, int]] = {}
    roots: list[GroupValues] = []
    profile, allocatable, root = (np.zeros(nodes, np.int64) for _ in range(3))
    for node in range(nodes):
        key = configurations.key(node), int(cpu[node]), int(memory[node]), int(pids[node])
        if key not in resolved:
            amounts = dict(zip((CPU, MEMORY, PID), key[1:], strict=True))
            settings = CgroupSettings.resolve(
                configurations.of(node),
                {name: amount for name, amount in amounts.items() if amount >= 0},
                cgroup_v2=version == 2,
            )
            mine = number.setdefault(_profile(settings), len(number))
            resolved[key] = mine, settings.node.allocatable().get(MEMORY, ZERO).value, len(roots)
            roots.append(settings.root_values())
        profile[node], allocatable[node], root[node] = resolved[key]
    containers, owner, names = _containers(snapshot)
    columns = snapshot.tables.columns
    columns = msgspec.structs.replace(columns, limits=_bounded(columns.limits, rows))
    count = snapshot.placed
    found = BulkValues(*(np.zeros((r, n), np.int64) for r, n in ((5, count), (7, len(owner)), (7, nodes))))
    limited = np.zeros(nodes, np.bool_)
    for rules, index in number.items():
        bulk = BulkCgroups(*rules, formula)
        out = bulk.values(columns, count, containers, np.maximum(memory, 0), allocatable)
        here = profile == index
        of_pods = here[columns.node[:count]]
        found.pods[:, of_pods] = out.pods[:, of_pods]
        of_containers = of_pods[owner]
        found.containers[:, of_containers] = out.containers[:, of_containers]
        found.levels[:, here] = out.levels[:, here]
        limited |= here & (rules.levels.reserved_percent is not None) & (allocatable > 0)
    return CgroupColumns(list(number), profile, found, owner, names, cpu, limited, roots, root)


def _profile(settings: CgroupSettings) -> Profile:
    return Profile(
        settings.pods,
        msgspec.structs.replace(settings.containers, memory_capacity=0, allocatable_memory=0),
        msgspec.structs.replace(settings.levels, allocatable_memory=None),
    )


def _capacity(snapshot: Snapshot, resource: str) -> Column:
    capacity = snapshot.allocatable(resource, "capacity")
    known: Column = np.where(capacity < 0, snapshot.allocatable(resource), capacity)
    return known


def _bounded(limits: Column, rows: Rows) -> Column:
    """Clamp limits to the range that the kernel takes, and note the clamped ones."""
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
    """Return the containers of all placed pods: each template's, decoded once, expanded to its pods."""
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
    """Return `starts[i], starts[i] + 1, …`, `counts[i]` of them, one after another."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
