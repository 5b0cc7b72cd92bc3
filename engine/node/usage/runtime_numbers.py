"""What the runtime measures of pods and containers, as numbers; what it does not say is `ABSENT`. Pure."""

from __future__ import annotations

from typing import Any, Final

from engine._fast.reading.groups import ABSENT
from engine.wire import cri_v1_pb2 as cri

CPU: Final = ("usage_core_nano_seconds", "usage_nano_cores")
MEMORY: Final = (
    "available_bytes",
    "usage_bytes",
    "working_set_bytes",
    "rss_bytes",
    "page_faults",
    "major_page_faults",
)
USE: Final = ("cpu_second", *CPU, "memory_second", *MEMORY)
LAYER: Final = ("layer_second", "used_bytes", "inodes_used")
_LARGEST: Final = (1 << 63) - 1

Row = tuple[int, ...]
_NO_USE: Final[Row] = (ABSENT,) * len(USE)
_NO_LAYER: Final[Row] = (ABSENT,) * len(LAYER)


def use(stats: cri.ContainerStats | cri.LinuxPodSandboxStats) -> Row:
    """By `USE`."""
    cpu = _values(stats.cpu, CPU) if stats.HasField("cpu") else _NO_USE[: 1 + len(CPU)]
    memory = _values(stats.memory, MEMORY) if stats.HasField("memory") else _NO_USE[: 1 + len(MEMORY)]
    return (*cpu, *memory)


def layer(stats: cri.ContainerStats) -> Row:
    """By `LAYER`."""
    return _values(stats.writable_layer, LAYER[1:]) if stats.HasField("writable_layer") else _NO_LAYER


def processes(stats: cri.LinuxPodSandboxStats) -> int:
    return min(stats.process.process_count.value, _LARGEST) if stats.HasField("process") else ABSENT


def _values(message: Any, names: tuple[str, ...]) -> Row:
    """The second of its time, and what it has under the names."""
    values = [
        min(getattr(message, name).value, _LARGEST) if message.HasField(name) else ABSENT for name in names
    ]
    return (message.timestamp // 10**9, *values)
