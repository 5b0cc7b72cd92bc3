"""Usage in the shape of the kubelet's Summary (`stats/v1alpha1`). Pure; what is not known is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.api.moments import rfc3339
from engine.node.usage.group import GroupSample, Pressure
from engine.node.usage.network import Interface
from engine.node.usage.sampler import UsedGroup

ETH0 = "eth0"
_NO_PRESSURE = Pressure(0, 0.0, 0.0, 0.0)


def group(used: UsedGroup, now: float) -> dict[str, Any]:
    """cpu, memory, io (where the kernel has PSI) and swap of a group."""
    sample, time = used.sample, rfc3339(now)
    shown: dict[str, Any] = {
        "cpu": _known(
            time=time,
            usageNanoCores=used.rate,
            usageCoreNanoSeconds=sample.cpu,
            psi=psi(sample, "cpu"),
        ),
        "memory": memory(sample, time),
        "swap": _known(time=time, swapUsageBytes=sample.swap, swapAvailableBytes=swap_available(sample)),
    }
    io = psi(sample, "io")
    if io is not None:
        shown["io"] = {"time": time, "psi": io}
    return {name: part for name, part in shown.items() if len(part) > 1}


def memory(sample: GroupSample, time: str) -> dict[str, Any]:
    limit, working_set = sample.memory_limit, sample.working_set
    available = None if limit is None or working_set is None else max(limit - working_set, 0)
    return _known(
        time=time,
        availableBytes=available,
        usageBytes=sample.memory,
        workingSetBytes=working_set,
        rssBytes=sample.rss,
        pageFaults=sample.faults,
        majorPageFaults=sample.major_faults,
        psi=psi(sample, "memory"),
    )


def swap_available(sample: GroupSample) -> int | None:
    if sample.swap_limit is None or sample.swap is None:
        return None
    return max(sample.swap_limit - sample.swap, 0)


def network(interfaces: Sequence[Interface], now: float) -> dict[str, Any]:
    """eth0's numbers stand for all, as with the kubelet; each interface follows."""
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
    return {"time": rfc3339(now), **first, "interfaces": each}


def psi(sample: GroupSample, name: str) -> dict[str, Any] | None:
    """PSI of `cpu`, `memory` or `io`, None where the kernel has none."""
    found = {kind: sample.pressure(name, kind) for kind in ("full", "some")}
    if not any(found.values()):
        return None
    return {kind: _pressure(pressure or _NO_PRESSURE) for kind, pressure in found.items()}


def _pressure(pressure: Pressure) -> dict[str, float]:
    averages = {"avg10": pressure.avg10, "avg60": pressure.avg60, "avg300": pressure.avg300}
    return {"total": pressure.total, **averages}


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
