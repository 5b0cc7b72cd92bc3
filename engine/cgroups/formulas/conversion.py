"""Converts Kubernetes amounts to the kernel's units and back: CPU shares, weights, quotas, huge page sizes.

Quota and period are microseconds. Sources: kubelet v1.32 `cm` package; runc 1.3.2 and crun 1.23 for the
second weight formula; pinned by `tests/conformance` (cgroup_convert).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.api.amounts.cpu_weight import MAX_SHARES, MIN_SHARES, WeightFormula, cpu_weight
from engine.api.errors import InvalidInput
from engine.api.quantity import Quantity
from engine.api.resources import HUGEPAGES_PREFIX

SHARES_PER_CPU: Final = 1024
DEFAULT_PERIOD_US: Final = 100_000
MIN_QUOTA_US: Final = 1000
UNLIMITED_QUOTA: Final = -1


def milli_cpu_to_shares(milli: int) -> int:
    """Return `cpu.shares` for a CPU request, between 2 and 262144; no request gives 2."""
    shares = milli * SHARES_PER_CPU // 1000
    if shares < MIN_SHARES:
        return MIN_SHARES
    return shares if shares < MAX_SHARES else MAX_SHARES


def milli_cpu_to_quota(milli: int, period_us: int = DEFAULT_PERIOD_US, *, custom_period: bool = True) -> int:
    """Return the CFS quota in microseconds, at least 1000; 0 for no limit.

    Without `custom_period` (the gate CustomCPUCFSQuotaPeriod), the period argument is ignored and 100000 is
    used.
    """
    if milli == 0:
        return 0
    quota = milli * (period_us if custom_period else DEFAULT_PERIOD_US) // 1000
    return quota if quota > MIN_QUOTA_US else MIN_QUOTA_US


def shares_to_weight(shares: int, formula: WeightFormula = "linear") -> int:
    """Return `cpu.weight` for `cpu.shares`; 0 shares ("not set") give 0."""
    return cpu_weight(shares, formula) if shares > 0 else 0


def shares_to_milli_cpu(shares: int) -> int:
    """Return the CPU request behind a container's shares, rounded up; 0 below the minimum."""
    return -(-shares * 1000 // SHARES_PER_CPU) if shares >= MIN_SHARES else 0


def quota_to_milli_cpu(quota: int, period: int) -> int:
    """Return the CPU limit behind a quota; 0 for none."""
    return quota * 1000 // period if quota > 0 and period > 0 else 0


def huge_page_size(resource: str) -> int | None:
    """Return the page size in bytes of `hugepages-2Mi`; None for any other resource name."""
    if not resource.startswith(HUGEPAGES_PREFIX):
        return None
    try:
        return Quantity.parse(resource.removeprefix(HUGEPAGES_PREFIX)).value
    except InvalidInput:
        return None


def huge_page_limits(resources: Mapping[str, Quantity]) -> dict[int, int]:
    """Return page size → limit, both in bytes; different spellings of one size are added up."""
    limits: dict[int, int] = {}
    for name, quantity in resources.items():
        size = huge_page_size(name)
        if size is not None:
            limits[size] = limits.get(size, 0) + quantity.value
    return limits


def huge_page_name(size: int) -> str:
    """Return a page size as the kernel and CRI spell it: `2MB`, `1GB`, `64KB`."""
    for unit in ("B", "KB", "MB", "GB", "TB", "PB"):
        if size < 1024 or size % 1024:
            return f"{size}{unit}"
        size //= 1024
    return f"{size}EB"
