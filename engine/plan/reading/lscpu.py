"""Reads the CPUs of a machine from `lscpu --json --extended`, for agents that do not describe them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.cpumanager.topology import Processor
from engine.plan.reading.documents import DocumentStruct

Number = int | Annotated[str, Meta(pattern=r"^(-|[0-9]{1,9})\Z")] | None
"""Older versions write numbers as text, and `-` for a group that the machine does not tell."""


class Lscpu(DocumentStruct):
    """Hold the document."""

    cpus: list[LscpuRow]


class LscpuRow(DocumentStruct):
    """Hold one CPU; `caches` are the ids of its caches from level 1 on, separated by colons."""

    cpu: Number
    core: Number = None
    socket: Number = None
    node: Number = None
    caches: str = msgspec.field(name="l1d:l1i:l2:l3", default="")
    online: bool | str = True


def processors_of_lscpu(rows: list[LscpuRow]) -> list[Processor]:
    """Return the online CPUs. As in a kubelet, a cache that covers its NUMA node counts as the socket."""
    online = [row for row in rows if row.online in (True, "yes", "y")]
    sizes: dict[int, int] = {}
    caches: dict[tuple[int, str], int] = {}
    for row in online:
        node = _number(row.node)
        sizes[node] = sizes.get(node, 0) + 1
        key = node, _last_cache(row)
        caches[key] = caches.get(key, 0) + 1
    found = []
    for row in online:
        cpu, node, last = _number(row.cpu), _number(row.node), _last_cache(row)
        socket = _number(row.socket)
        whole = not last or caches[node, last] == sizes[node]
        found.append(Processor(cpu, _number(row.core, cpu), socket if whole else int(last), socket, node))
    return found


def _last_cache(row: LscpuRow) -> str:
    last = row.caches.rpartition(":")[2]
    return last if last.isascii() and last.isdecimal() and len(last) < 10 else ""


def _number(value: Number, default: int = 0) -> int:
    return value if isinstance(value, int) else int(value) if value and value != "-" else default
