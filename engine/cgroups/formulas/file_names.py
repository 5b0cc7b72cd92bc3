"""Names kernel files that several modules use."""

from __future__ import annotations

from typing import Final

CPU_BURST: Final = {1: "cpu.cfs_burst_us", 2: "cpu.max.burst"}
CPU_USAGE: Final = {1: "cpuacct.usage", 2: "cpu.stat"}
"""By cgroup version."""
CPU_IDLE: Final = "cpu.idle"
"""Present in both versions; the names below belong to version 2."""
MEMORY_MIN: Final = "memory.min"
MEMORY_LOW: Final = "memory.low"
MEMORY_HIGH: Final = "memory.high"
MEMORY_SWAP_MAX: Final = "memory.swap.max"
MEMORY_OOM_GROUP: Final = "memory.oom.group"
IO_WEIGHT: Final = "io.weight"
IO_MAX: Final = "io.max"
