"""Reads the memory and huge pages of each NUMA node from sysfs."""

from __future__ import annotations

import re
from pathlib import Path

from engine.memorymanager.state import NodeMemory

NODES = Path("/sys/devices/system/node")
HUGEPAGES = Path("/sys/kernel/mm/hugepages")
MEMINFO = Path("/proc/meminfo")
_TOTAL = re.compile(r"MemTotal:\s+(\d+) kB")
_PAGES = re.compile(r"hugepages-(\d+)kB")


def read_nodes(nodes: Path = NODES, hugepages: Path = HUGEPAGES, meminfo: Path = MEMINFO) -> list[NodeMemory]:
    """Read each NUMA node in ascending order; without NUMA in the kernel, node 0 has all of the memory."""
    found = sorted(int(path.name.removeprefix("node")) for path in nodes.glob("node[0-9]*"))
    if not found:
        return [NodeMemory(0, _memory(meminfo), _hugepages(hugepages))]
    return [
        NodeMemory(node, _memory(nodes / f"node{node}/meminfo"), _hugepages(nodes / f"node{node}/hugepages"))
        for node in found
    ]


def _memory(path: Path) -> int:
    """Return bytes; 0 if the kernel does not report them."""
    try:
        total = _TOTAL.search(path.read_text())
    except OSError:
        return 0
    return int(total[1]) * 1024 if total is not None else 0


def _hugepages(directory: Path) -> dict[int, int]:
    """Return the number of pages by size in KiB."""
    pages = {}
    for path in directory.glob("hugepages-*"):
        size = _PAGES.fullmatch(path.name)
        if size is not None:
            pages[int(size[1])] = int((path / "nr_hugepages").read_text())
    return pages
