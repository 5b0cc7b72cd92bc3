"""Formats usage as in the kubelet's Summary (`stats/v1alpha1`); unknown values are omitted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from engine._fast.reading.groups import ABSENT, COLUMNS
from engine.api.timestamps import rfc3339
from engine.node.stats.group import GroupSample, PressureStall
from engine.node.stats.network import Interface

ETH0 = "eth0"
_CPU = (("usageCoreNanoSeconds", COLUMNS.index("cpu")),)
_MEMORY = (
    ("usageBytes", COLUMNS.index("memory")),
    ("rssBytes", COLUMNS.index("rss")),
    ("pageFaults", COLUMNS.index("faults")),
    ("majorPageFaults", COLUMNS.index("major_faults")),
)
_MEMORY_LIMIT, _SWAP, _SWAP_LIMIT = map(COLUMNS.index, ("memory_limit", "swap", "swap_limit"))
_SWAP_NAMES = (("swapUsageBytes", _SWAP),)
_NO_PRESSURE = PressureStall(0, 0.0, 0.0, 0.0)


def group(sample: GroupSample) -> dict[str, Any]:
    """Return cpu, memory, io (if the kernel has PSI) and swap of a cgroup."""
    time = _second(int(sample.table.time))
    numbers = sample.numbers
    rate = sample.rate
    cpu: dict[str, Any] = {"time": time} if rate is None else {"time": time, "usageNanoCores": rate}
    memory: dict[str, Any] = {"time": time}
    swap: dict[str, Any] = {"time": time}
    working_set, limit = sample.working_set, numbers[_MEMORY_LIMIT]
    if working_set is not None:
        memory["workingSetBytes"] = working_set
        if limit != ABSENT:
            memory["availableBytes"] = max(limit - working_set, 0)
    if numbers[_SWAP] != ABSENT and numbers[_SWAP_LIMIT] != ABSENT:
        swap["swapAvailableBytes"] = max(numbers[_SWAP_LIMIT] - numbers[_SWAP], 0)
    for part, names in ((cpu, _CPU), (memory, _MEMORY), (swap, _SWAP_NAMES)):
        for name, at in names:
            if numbers[at] != ABSENT:
                part[name] = numbers[at]
    shown = {"cpu": cpu, "memory": memory, "swap": swap}
    if sample.has_pressure:
        shown["io"] = {"time": time}
        for name in ("cpu", "memory", "io"):
            pressure = psi(sample, name)
            if pressure is not None:
                shown[name]["psi"] = pressure
    return {name: part for name, part in shown.items() if len(part) > 1}


def network(interfaces: Sequence[Interface], now: float) -> dict[str, Any]:
    """Return the network counters and the time of reading."""
    return {"time": rfc3339(now), **devices(interfaces)}


def devices(interfaces: Sequence[Interface]) -> dict[str, Any]:
    """Return the counters of eth0 as the total, as the kubelet does, then each interface."""
    each = [
        {
            "name": one.name,
            "rxBytes": one.rx_bytes,
            "rxErrors": one.rx_errors,
            "txBytes": one.tx_bytes,
            "txErrors": one.tx_errors,
        }
        for one in interfaces
    ]
    first = next((one for one in each if one["name"] == ETH0), {"name": ""})
    return {**first, "interfaces": each}


def psi(sample: GroupSample, name: str) -> dict[str, Any] | None:
    """Return the PSI of `cpu`, `memory` or `io`, or None without PSI."""
    full, some = sample.pressure(name, "full"), sample.pressure(name, "some")
    if full is None and some is None:
        return None
    return {"full": _pressure(full or _NO_PRESSURE), "some": _pressure(some or _NO_PRESSURE)}


def _pressure(pressure: PressureStall) -> dict[str, float]:
    averages = {"avg10": pressure.avg10, "avg60": pressure.avg60, "avg300": pressure.avg300}
    return {"total": pressure.total, **averages}


@lru_cache(1)
def _second(second: int) -> str:
    """Format a time; cached, because all groups of one reading have the same."""
    return rfc3339(second)
