"""Cgroup values of every pod, container and QoS level of many nodes: the rule, written for reading.

The same rules as `engine.cgroups.formulas.values`, `containers` and `levels`, over columns. Rows are pods;
containers lie end to end, `offsets[row]` to `offsets[row + 1]` being those of a row. CPU in milli-CPU,
memory in bytes, quota in microseconds. Amounts must stay below the bounds of `MAX_MILLI`, `MAX_BYTES`.

pod_values(qos, flags, cpu_request, memory_request, cpu_limit, memory_limit, weights, rules, out)
    IN   qos uint8[N] (0 BestEffort, 1 Burstable, 2 Guaranteed); flags uint8[N] (bit 0: a live row,
         bits 64 and 128: every container limits cpu, memory); the four amounts int64[N];
         weights uint16[262145], cpu.weight by shares
    OUT  int64[5, N]: shares, weight, quota (NONE: leave), memory limit (NONE: unlimited), memory
         protected (0 unless memory QoS). All 0 for a free row.

container_values(offsets, qos, flags, node, cpu_request, cpu_limit, memory_request, memory_limit,
                 oom_request, kind, capacity, allocatable, weights, rules, out)
    IN   offsets int64[N + 1]; node int32[N]; amounts int64[M] (cpu_request NONE: not given, so that
         the limit counts); oom_request: the request that oom_score_adj goes by; kind uint8[M] (SIDECAR,
         INIT, NODE_CRITICAL); capacity, allocatable int64[nodes], bytes
    OUT  int64[7, M]: shares, weight, quota (0: none), memory limit (0: none), oom_score_adj,
         memory protected (0: none), memory.high (0: none)

level_values(qos, flags, node, cpu_request, memory_request, allocatable, weights, rules, out)
    OUT  int64[7, nodes]: burstable shares, burstable weight, burstable memory limit, besteffort memory
         limit (NONE: unlimited), memory protected at the root and at burstable, pods counted
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NONE = -1
UNLIMITED = -(2**63)
LIVE, CPU_LIMITED, MEMORY_LIMITED = 1, 64, 128
BEST_EFFORT, BURSTABLE, GUARANTEED = 0, 1, 2
INIT, SIDECAR, NODE_CRITICAL = 1, 2, 4
MAX_MILLI, MAX_BYTES = 2**43, 2**53
MAX_SHARES = 262_144

Column = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Weights = NDArray[np.uint16]


class Rules(NamedTuple):
    """Parameters of the formulas: `quota_period` is the period that quotas are computed with;
    `reserved_percent` is −1 for none.
    """

    enforce_cpu: bool = True
    quota_period: int = 100_000
    container_period: int = 100_000
    memory_qos: bool = False
    throttling_factor: float = 0.9
    page_size: int = 4096
    reserved_percent: int = -1


def _shares(milli: int) -> int:
    return min(max(milli * 1024 // 1000, 2), MAX_SHARES)


def _quota(milli: int, period: int) -> int:
    return 0 if milli == 0 else max(milli * period // 1000, 1000)


def pod_values(
    qos: Bytes,
    flags: Bytes,
    cpu_request: Column,
    memory_request: Column,
    cpu_limit: Column,
    memory_limit: Column,
    weights: Weights,
    rules: Rules,
    out: Column,
) -> None:
    for row in range(len(qos)):
        if not flags[row] & LIVE:
            out[:, row] = 0
            continue
        quota = memory = NONE
        shares = 2
        if qos[row] != BEST_EFFORT:
            shares = _shares(int(cpu_request[row]))
            if qos[row] == GUARANTEED or flags[row] & CPU_LIMITED:
                limited = _quota(int(cpu_limit[row]), rules.quota_period)
                quota = limited if rules.enforce_cpu else UNLIMITED
            if qos[row] == GUARANTEED or flags[row] & MEMORY_LIMITED:
                memory = int(memory_limit[row])
        protected = int(memory_request[row]) if rules.memory_qos else 0
        out[:, row] = (shares, weights[shares], quota, memory, protected)


def container_values(
    offsets: Column,
    qos: Bytes,
    flags: Bytes,
    node: NDArray[np.int32],
    cpu_request: Column,
    cpu_limit: Column,
    memory_request: Column,
    memory_limit: Column,
    oom_request: Column,
    kind: Bytes,
    capacity: Column,
    allocatable: Column,
    weights: Weights,
    rules: Rules,
    out: Column,
) -> None:
    for row in range(len(qos)):
        mine = range(int(offsets[row]), int(offsets[row + 1]))
        regular = [int(oom_request[i]) for i in mine if not kind[i] & (INIT | SIDECAR)]
        for i in mine:
            if not flags[row] & LIVE:
                out[:, i] = 0
                continue
            milli = int(cpu_limit[i] if cpu_request[i] == NONE else cpu_request[i])
            quota = _quota(int(cpu_limit[i]), rules.container_period) if rules.enforce_cpu else 0
            request, limit = int(memory_request[i]), int(memory_limit[i])
            protected = high = 0
            if rules.memory_qos:
                protected = request
                if request != limit:
                    high = _high(request, limit or int(allocatable[node[row]]), rules)
            score = _oom_score(
                int(qos[row]), int(kind[i]), int(oom_request[i]), regular, int(capacity[node[row]])
            )
            shares = _shares(milli)
            out[:, i] = (shares, weights[shares], quota, limit, score, protected, high)


def _high(request: int, ceiling: int, rules: Rules) -> int:
    if ceiling <= 0:
        return 0
    mark = float(request) + (float(ceiling) - float(request)) * rules.throttling_factor
    high = int(mark // 1 / rules.page_size) * rules.page_size
    return high if high > request else 0


def _oom_score(qos: int, kind: int, request: int, regular: list[int], capacity: int) -> int:
    if qos == GUARANTEED or kind & NODE_CRITICAL:
        return -997
    if qos == BEST_EFFORT:
        return 1000
    if kind & SIDECAR and regular:
        request = max(request, min(regular))
    score = 1000 - 1000 * request // capacity if capacity > 0 else 0
    return min(max(score, 3), 999)


def level_values(
    qos: Bytes,
    flags: Bytes,
    node: NDArray[np.int32],
    cpu_request: Column,
    memory_request: Column,
    allocatable: Column,
    weights: Weights,
    rules: Rules,
    out: Column,
) -> None:
    nodes = len(allocatable)
    milli, burstable, guaranteed, pods = ([0] * nodes for _ in range(4))
    for row in range(len(qos)):
        if flags[row] & LIVE:
            at = int(node[row])
            pods[at] += 1
            if qos[row] == BURSTABLE:
                milli[at] += int(cpu_request[row])
                burstable[at] += int(memory_request[row])
            elif qos[row] == GUARANTEED:
                guaranteed[at] += int(memory_request[row])
    for at in range(nodes):
        limits = [NONE, NONE]
        if rules.reserved_percent >= 0 and allocatable[at] > 0:
            limits[0] = int(allocatable[at]) - guaranteed[at] * rules.reserved_percent // 100
            limits[1] = limits[0] - burstable[at] * rules.reserved_percent // 100
        shares = _shares(milli[at])
        protected = (guaranteed[at] + burstable[at], burstable[at]) if rules.memory_qos else (0, 0)
        out[:, at] = (shares, weights[shares], *limits, *protected, pods[at])
