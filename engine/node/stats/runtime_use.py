"""Selects the runtime's numbers for containers and pods whose cgroups provide none. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from engine._fast.reading.groups import ABSENT
from engine.node.stats.runtime_numbers import Columns, RuntimeStats
from engine.node.stats.used import NodeUsage, UsedGroup

_CPU, _MEMORY = ("usage_core_nano_seconds", "cpu_second"), ("working_set_bytes", "memory_second")


class RuntimeUse(msgspec.Struct, frozen=True):
    """Hold the usage of a container, or of a pod if `container` is "".

    `cpu` is the total in nanoseconds and `memory` the working set in bytes, each with its Unix second; None
    if the cgroup provides the number, or nothing does. `started` is a Unix time, 0 if unknown.
    """

    namespace: str
    pod: str
    container: str
    cpu: tuple[int, int] | None
    memory: tuple[int, int] | None
    started: float = 0.0


def runtime_use(usage: NodeUsage, stats: RuntimeStats) -> Iterator[RuntimeUse]:
    """Return the usage of containers and pods whose cgroups lack numbers that the runtime has."""
    groups = {(pod.record.uid, ""): pod.group for pod in usage.pods}
    groups |= {
        (pod.record.uid, name): group for pod in usage.pods for name, (group, _) in pod.by_name.items()
    }
    first = 0
    for at, ((name, namespace, uid), containers) in enumerate(zip(stats.places, stats.names, strict=True)):
        sources = [("", stats.pods, at)]
        sources += [(container, stats.containers, first + i) for i, container in enumerate(containers)]
        first += len(containers)
        for container, columns, row in sources:
            group = groups.get((uid, container))
            own_cpu, own_memory = _own(usage, group)
            cpu = None if own_cpu else _reported(columns, *_CPU, row)
            memory = None if own_memory else _reported(columns, *_MEMORY, row)
            started = 0.0
            if group is not None and group.container is not None and not (own_cpu or own_memory):
                started = group.container.started_at
            if cpu is not None or memory is not None:
                yield RuntimeUse(namespace, name, container, cpu, memory, started)


def _own(usage: NodeUsage, group: UsedGroup | None) -> tuple[bool, bool]:
    """Tell whether a cgroup provides its own CPU time and memory."""
    if group is None:
        return False, False
    cpu, memory = (usage.table.column(name)[group.row] != ABSENT for name in ("cpu", "memory"))
    return cpu, memory


def _reported(columns: Columns, name: str, second: str, row: int) -> tuple[int, int] | None:
    value, at = columns[name][row], columns[second][row]
    return None if ABSENT in (value, at) else (value, at)
