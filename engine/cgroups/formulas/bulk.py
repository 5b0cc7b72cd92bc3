"""Computes the cgroup values of a whole node, or of every node of a snapshot, in one pass over columns."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine._fast import cgroup_values as kernel
from engine._fast.cgroup_values import (
    INIT,
    MAX_BYTES,
    MAX_MILLI,
    MAX_SHARES,
    NODE_CRITICAL,
    NONE,
    SIDECAR,
    Rules,
)
from engine.api.amounts.cpu_weight import WeightFormula
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import is_node_critical
from engine.api.quantity import ZERO
from engine.api.resources import CPU, MEMORY
from engine.cgroups.formulas.containers import ContainerRules, effective_limit, unassigned_memory
from engine.cgroups.formulas.conversion import DEFAULT_PERIOD_US, shares_to_weight
from engine.cgroups.formulas.levels import LevelRules
from engine.cgroups.formulas.values import PodRules, limits_declared
from engine.tables.columns import CPU_LIMITED, LIVE, MEMORY_LIMITED, PodColumns
from engine.tables.names import CPU_ID, MEMORY_ID

Column = NDArray[np.int64]


class ContainerColumns(msgspec.Struct):
    """Hold the containers of a PodTable's rows, end to end, init containers first.

    offsets         int64[N + 1]  row r has containers offsets[r] to offsets[r + 1]
    cpu_request     int64[M]      milli-CPU, −1 where none is given
    cpu_limit       int64[M]      milli-CPU, 0 is none; the pod's own where the container has none
    memory_request  int64[M]      bytes
    memory_limit    int64[M]      bytes, 0 is none; the pod's own where the container has none
    oom_request     int64[M]      bytes that oom_score_adj goes by
    kind            uint8[M]      INIT, SIDECAR, NODE_CRITICAL
    limited         uint8[N]      CPU_LIMITED, MEMORY_LIMITED: limited throughout, where an init
                                  container also counts the limits of the sidecars before it
    """

    offsets: Column
    cpu_request: Column
    cpu_limit: Column
    memory_request: Column
    memory_limit: Column
    oom_request: Column
    kind: NDArray[np.uint8]
    limited: NDArray[np.uint8]

    @classmethod
    def of(cls, pods: Iterable[Pod]) -> ContainerColumns:
        """Return the columns of these pods, in the order of a table's rows."""
        counts: list[int] = [0]
        rows: list[tuple[int, int, int, int, int]] = []
        kinds: list[int] = []
        limited: list[int] = []
        for pod in pods:
            cpu, memory_limited = limits_declared(pod)
            limited.append(CPU_LIMITED * cpu | MEMORY_LIMITED * memory_limited)
            extra = unassigned_memory(pod)
            critical = NODE_CRITICAL if is_node_critical(pod) else 0
            inits = len(pod.init_containers)
            for index, container in enumerate(pod.all_containers):
                request = container.requests.get(CPU)
                memory = container.requests.get(MEMORY, ZERO).value
                rows.append(
                    (
                        NONE if request is None else request.milli,
                        effective_limit(pod, container, CPU).milli,
                        memory,
                        effective_limit(pod, container, MEMORY).value,
                        memory + extra,
                    )
                )
                init = (SIDECAR if container.is_sidecar else INIT) if index < inits else 0
                kinds.append(critical | init)
            counts.append(len(rows))
        amounts = np.ascontiguousarray(np.array(rows, np.int64).reshape(len(rows), 5).T)
        return cls(
            offsets=np.array(counts, np.int64),
            cpu_request=amounts[0],
            cpu_limit=amounts[1],
            memory_request=amounts[2],
            memory_limit=amounts[3],
            oom_request=amounts[4],
            kind=np.array(kinds, np.uint8),
            limited=np.array(limited, np.uint8),
        )


class BulkValues(msgspec.Struct):
    """Hold the results as `_cgroup_values_py` describes them: int64[5, N], int64[7, M] and int64[7,
    nodes].
    """

    pods: Column
    containers: Column
    levels: Column


class BulkCgroups:
    """Resolve rules once, then compute values for any number of tables.

    The next call of the same size overwrites the results, so copy what you keep.
    """

    def __init__(
        self,
        pods: PodRules,
        containers: ContainerRules,
        levels: LevelRules,
        formula: WeightFormula = "linear",
    ) -> None:
        period = pods.cpu_period_us if pods.custom_cpu_period else DEFAULT_PERIOD_US
        self.rules = Rules(
            enforce_cpu=pods.enforce_cpu_limits,
            quota_period=period,
            container_period=containers.cpu_period_us if containers.custom_cpu_period else DEFAULT_PERIOD_US,
            memory_qos=containers.memory_qos,
            throttling_factor=containers.throttling_factor,
            page_size=mmap.PAGESIZE,
            reserved_percent=-1 if levels.reserved_percent is None else levels.reserved_percent,
        )
        self._memory_reserved = containers.memory_reserved
        self._reserved_rules = self.rules._replace(memory_qos=pods.memory_qos)
        self._weights = weight_table(formula)
        self._out = BulkValues(*(np.empty((rows, 0), np.int64) for rows in (5, 7, 7)))

    def values(
        self,
        pods: PodColumns,
        rows: int,
        containers: ContainerColumns,
        capacity: Sequence[int] | Column,
        allocatable: Sequence[int] | Column,
    ) -> BulkValues:
        """Compute the values of the first `rows` rows (0 in free rows), their containers, and their nodes.

        `capacity` and `allocatable` are bytes of memory per node. Raises `InvalidInput` for an amount beyond
        2^43 milli-CPU or 2^53 bytes, or sums beyond 2^62, which 64 bits could not hold.
        """
        sizes = np.asarray(capacity, np.int64), np.asarray(allocatable, np.int64)
        requests, limits = pods.requests[:, :rows], pods.limits[:, :rows]
        cpu, memory = requests[CPU_ID], requests[MEMORY_ID]
        _check("cpu", MAX_MILLI, cpu, limits[CPU_ID], containers.cpu_request, containers.cpu_limit)
        _check(
            "memory", MAX_BYTES, memory, limits[MEMORY_ID], containers.oom_request, containers.memory_limit
        )
        if rows and float(memory.sum(dtype=np.float64)) > 2.0**62:
            raise InvalidInput("the pods' requests together exceed 2^62 bytes", subject="memory")
        qos, node = pods.qos[:rows], pods.node[:rows]
        flags = ((pods.flags[:rows] & LIVE) | containers.limited).astype(np.uint8)
        out = self._reuse(rows, len(containers.kind), len(sizes[0]))
        kernel.pod_values(
            qos,
            flags,
            cpu,
            memory,
            limits[CPU_ID],
            limits[MEMORY_ID],
            self._weights,
            self._reserved_rules,
            out.pods,
        )
        kernel.container_values(
            containers.offsets,
            qos,
            flags,
            node,
            containers.cpu_request,
            containers.cpu_limit,
            containers.memory_request,
            containers.memory_limit,
            containers.oom_request,
            containers.kind,
            sizes[0],
            sizes[1],
            self._weights,
            self.rules,
            out.containers,
        )
        if not self._memory_reserved:
            out.containers[5] = 0
        kernel.level_values(
            qos, flags, node, cpu, memory, sizes[1], self._weights, self._reserved_rules, out.levels
        )
        return out

    def _reuse(self, rows: int, containers: int, nodes: int) -> BulkValues:
        for name, size in (("pods", rows), ("containers", containers), ("levels", nodes)):
            array = getattr(self._out, name)
            if array.shape[1] != size:
                setattr(self._out, name, np.empty((len(array), size), np.int64))
        return self._out


def _check(name: str, bound: int, *columns: Column) -> None:
    if any(len(column) and int(column.max()) > bound for column in columns):
        raise InvalidInput(f"an amount is beyond {bound}", subject=name)


@cache
def weight_table(formula: WeightFormula) -> NDArray[np.uint16]:
    """Return cpu.weight by cpu.shares: uint16[262145]."""
    return np.array([shares_to_weight(shares, formula) for shares in range(MAX_SHARES + 1)], np.uint16)
