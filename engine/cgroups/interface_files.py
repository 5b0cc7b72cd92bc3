"""Converts a cgroup's values to files of v1 or v2, spelled as the kernel returns them.

Written text can therefore be compared with what is read. In both versions, the controller of a file is the
part of its name before the first dot.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from engine.api.amounts.cpu_weight import WeightFormula
from engine.cgroups.formulas.conversion import huge_page_name, shares_to_weight
from engine.cgroups.formulas.file_names import (
    CPU_BURST,
    CPU_IDLE,
    IO_MAX,
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_MIN,
    MEMORY_OOM_GROUP,
    MEMORY_SWAP_MAX,
)
from engine.cgroups.formulas.values import GroupValues
from engine.host.cgroupfs.mounts import Mounts

PAGE: Final = mmap.PAGESIZE
V1_UNLIMITED: Final = (2**63 - 1) // PAGE * PAGE
UNLIMITED: Final = {1: "-1", 2: "max"}
MEMORY_LIMIT: Final = {1: "memory.limit_in_bytes", 2: "memory.max"}
MEMORY_USAGE: Final = {1: "memory.usage_in_bytes", 2: "memory.current"}
WRITTEN_CONTROLLERS: Final = frozenset(["cpu", "memory", "pids", "hugetlb", "cpuset", "io"])
CPU_SHARE: Final = {1: "cpu.shares", 2: "cpu.weight"}
_PAGED = frozenset(
    ["memory.limit_in_bytes", "memory.max", MEMORY_MIN, MEMORY_LOW, MEMORY_HIGH, MEMORY_SWAP_MAX]
)

_FRESH: Final = {
    1: {
        "cpu.shares": "1024",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "-1",
        CPU_BURST[1]: "0",
        "memory.limit_in_bytes": "-1",
        "pids.max": "max",
    },
    2: {
        "cpu.weight": "100",
        "cpu.max": "max 100000",
        CPU_BURST[2]: "0",
        "memory.max": "max",
        MEMORY_MIN: "0",
        MEMORY_LOW: "0",
        MEMORY_HIGH: "max",
        MEMORY_SWAP_MAX: "max",
        MEMORY_OOM_GROUP: "0",
        "pids.max": "max",
        "cpuset.cpus": "",
    },
}


class FileRules(msgspec.Struct, frozen=True):
    """Hold the conversion rules: cgroup version, weight formula, and the node's page sizes."""

    version: Literal[1, 2]
    formula: WeightFormula = "linear"
    huge_page_sizes: Sequence[int] = ()
    controllers: frozenset[str] = frozenset()

    @classmethod
    def on(cls, mounts: Mounts, formula: WeightFormula, huge_page_sizes: Sequence[int]) -> FileRules:
        """Return the rules of a machine with these hierarchies."""
        sizes = huge_page_sizes if "hugetlb" in mounts.controllers else ()
        return cls(mounts.version, formula, sizes, mounts.controllers & WRITTEN_CONTROLLERS)

    def fresh(self, controllers: Collection[str]) -> dict[str, str]:
        """Return what the kernel puts into a new cgroup's files of these controllers."""
        huge_pages = {self._huge_page_file(size): UNLIMITED[self.version] for size in self.huge_page_sizes}
        fresh = _FRESH[self.version] | huge_pages
        return {file: text for file, text in fresh.items() if file.partition(".")[0] in controllers}

    def files(self, values: GroupValues, *, unbounded_huge_pages: bool = False) -> dict[str, str]:
        """Return every file that these values determine, in the order of writing.

        A missing limit is written as unlimited, so that a removed limit disappears in the kernel too; CPU
        shares that are not set are left alone. Huge page sizes that are not named get 0, as in the kubelet,
        except for QoS levels. Files of missing controllers are left out.
        """
        wanted = self._v1(values) if self.version == 1 else self._v2(values)
        if values.cpu_burst is not None:
            wanted[CPU_BURST[self.version]] = str(values.cpu_burst)
        if values.cpu_idle:
            wanted[CPU_IDLE] = "1"
        for size in self.huge_page_sizes:
            limit = values.huge_pages.get(size, 0)
            text = UNLIMITED[self.version] if unbounded_huge_pages else str(limit)
            wanted[self._huge_page_file(size)] = text
        return {name: text for name, text in wanted.items() if name.partition(".")[0] in self.controllers}

    def given_files(self, values: GroupValues) -> dict[str, str]:
        """Return only the files whose values are given, for a cgroup that others own."""
        given = {
            CPU_SHARE[self.version]: values.cpu_shares,
            MEMORY_LIMIT[self.version]: values.memory,
            "pids.max": values.pids,
        } | {self._huge_page_file(size): limit for size, limit in values.huge_pages.items()}
        names = {file for file, amount in given.items() if amount is not None} | values.unified.keys()
        return {file: text for file, text in self.files(values).items() if file in names}

    def _cpu_weight(self, values: GroupValues) -> dict[str, str]:
        """Return `cpu.weight`, or `cpu.shares` on v1, or nothing if shares are not set."""
        if values.cpu_shares is None:
            return {}
        if self.version == 1:
            return {"cpu.shares": str(values.cpu_shares)}
        return {"cpu.weight": str(shares_to_weight(values.cpu_shares, self.formula))}

    def _v1(self, values: GroupValues) -> dict[str, str]:
        wanted = self._cpu_weight(values)
        if values.cpu_period is not None:
            wanted["cpu.cfs_period_us"] = str(values.cpu_period)
        wanted["cpu.cfs_quota_us"] = str(values.cpu_quota or -1)
        wanted["memory.limit_in_bytes"] = self._memory_max(values)
        wanted["pids.max"] = self._pids_max(values)
        return wanted | ({} if values.cpuset is None else {"cpuset.cpus": values.cpuset})

    def _v2(self, values: GroupValues) -> dict[str, str]:
        wanted = self._cpu_weight(values)
        quota = values.cpu_quota or -1
        wanted["cpu.max"] = f"{quota if quota > 0 else 'max'} {values.cpu_period or 100_000}"
        wanted["memory.max"] = self._memory_max(values)
        for name, unset in (("memory.min", "0"), ("memory.low", "0"), ("memory.high", "max")):
            wanted[name] = kernel_form(name, values.unified.get(name, unset))
        wanted["pids.max"] = self._pids_max(values)
        if values.cpuset is not None:
            wanted["cpuset.cpus"] = values.cpuset
        return {name: kernel_form(name, text) for name, text in values.unified.items()} | wanted

    def _memory_max(self, values: GroupValues) -> str:
        if values.memory is None:
            return UNLIMITED[self.version]
        return kernel_form(MEMORY_LIMIT[self.version], str(max(values.memory, 0)))

    def _pids_max(self, values: GroupValues) -> str:
        return "max" if values.pids is None or values.pids < 0 else str(values.pids)

    def _huge_page_file(self, size: int) -> str:
        return f"hugetlb.{huge_page_name(size)}.{'limit_in_bytes' if self.version == 1 else 'max'}"


def kernel_form(name: str, text: str) -> str:
    """Return a text as the kernel returns it.

    Memory is rounded down to whole pages, the largest number of v1 becomes -1, and disk limits get one
    order.
    """
    if name == IO_MAX:
        return "\n".join(sorted(text.splitlines()))
    if name.startswith("hugetlb.") and text.isdigit():
        return "-1" if int(text) >= V1_UNLIMITED - 2**31 else text
    if name not in _PAGED or not text.isdigit():
        return text
    pages = int(text) // PAGE
    if name == "memory.limit_in_bytes":
        return "-1" if pages * PAGE >= V1_UNLIMITED else str(pages * PAGE)
    return "max" if pages * PAGE >= V1_UNLIMITED else str(pages * PAGE)
