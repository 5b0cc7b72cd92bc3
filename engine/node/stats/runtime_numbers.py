"""Decodes the runtime's statistics of pods and containers into columns. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Final, TypeAlias

import msgspec

from engine._fast.messages.message_fields import Picker
from engine._fast.reading.groups import ABSENT

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
PROCESSES: Final = "processes"
_SECONDS: Final = ("cpu_second", "memory_second", "layer_second")

Columns: TypeAlias = Mapping[str, Sequence[int]]


def _picked(part: str, numbers: Sequence[str]) -> list[str]:
    return [f"{part}.timestamp?", *(f"{part}.{name}.value?" for name in numbers)]


_IDENTITY: Final = [f"attributes.metadata.{name}" for name in ("name", "namespace", "uid")]
_PODS: Final = Picker(
    "ListPodSandboxStatsResponse",
    [
        *_IDENTITY,
        "linux.containers",
        *_picked("linux.cpu", CPU),
        *_picked("linux.memory", MEMORY),
        *_picked("linux.process", ["process_count"]),
    ],
)
_CONTAINERS: Final = Picker(
    "ListContainerStatsResponse",
    [
        "attributes.metadata.name",
        *_picked("cpu", CPU),
        *_picked("memory", MEMORY),
        *_picked("writable_layer", LAYER[1:]),
    ],
)


class RuntimeStats(msgspec.Struct, frozen=True, eq=False):
    """Hold the statistics of pods and containers.

    `places` are name, namespace and uid of each pod, `names` the names of its containers. `pods` has columns
    by `USE` and `PROCESSES`; `containers` by `USE` and `LAYER`, pod after pod. Missing values are `ABSENT`;
    times are whole seconds.
    """

    places: Sequence[tuple[str, str, str]]
    names: Sequence[Sequence[str]]
    pods: Columns
    containers: Columns


def read(message: bytes) -> RuntimeStats:
    """Decode a ListPodSandboxStatsResponse. Raises `ValueError` for malformed bytes."""
    names, namespaces, uids, inside, *numbers = _PODS.pick(message)
    container_names, *of_containers = _CONTAINERS.pick_items([*chain.from_iterable(inside)])
    begins = accumulate(map(len, inside), initial=0)
    of_pods = [container_names[begin:end] for begin, end in pairwise(begins)]
    *used, measured, processes = numbers
    pods = _columns(USE, used)
    pods[PROCESSES] = [
        ABSENT if at == ABSENT else max(count, 0) for at, count in zip(measured, processes, strict=True)
    ]
    places = [*zip(names, namespaces, uids, strict=True)]
    return RuntimeStats(places, of_pods, pods, _columns((*USE, *LAYER), of_containers))


def _columns(names: Sequence[str], columns: Sequence[Sequence[int]]) -> dict[str, Sequence[int]]:
    found = dict(zip(names, columns, strict=True))
    for name in _SECONDS:
        if name in found:
            found[name] = [value if value == ABSENT else value // 10**9 for value in found[name]]
    return found
