"""Reads the core, cache, socket and NUMA node of each online CPU from sysfs, as cAdvisor does.

A last-level cache that is as large as its NUMA node carries no information: the socket's id is used instead.
"""

from __future__ import annotations

from pathlib import Path

from engine.api import cpu_set as cpu_sets
from engine.api.errors import Refused
from engine.cpumanager.topology import CpuTopology, Processor

SYSFS = Path("/sys/devices/system")
CORE_CACHES = 2
"""Caches up to this level belong to a core."""


def online_cpus(root: Path = SYSFS) -> int:
    """Return the online CPUs. Raises `Refused` with the path."""
    path = root / "cpu/online"
    try:
        return cpu_sets.parse(path.read_text().strip(), str(path))
    except OSError as error:
        raise Refused(error.strerror or str(error), subject=str(path), errno=error.errno) from error


def offline_cpus(root: Path = SYSFS) -> int:
    """Return the CPUs that the machine has and that are offline; 0 if the kernel does not tell."""
    return cpu_sets.parse(_text(root / "cpu/present"), str(root / "cpu/present")) & ~online_cpus(root)


def isolated_cpus(root: Path = SYSFS) -> int:
    """Return the CPUs of the kernel's parameter `isolcpus`; 0 if the kernel does not tell."""
    return cpu_sets.parse(_text(root / "cpu/isolated"), str(root / "cpu/isolated"))


def read_topology(root: Path = SYSFS) -> CpuTopology:
    """Return the topology of the online CPUs. Raises `Refused` with the path."""
    online = online_cpus(root)
    nodes = {}
    for directory in (root / "node").glob("node[0-9]*"):
        members = cpu_sets.parse(_text(directory / "cpulist"), str(directory / "cpulist"))
        nodes[int(directory.name.removeprefix("node"))] = members & online
    if not any(nodes.values()):
        nodes = {0: online}
    found = []
    for node, members in nodes.items():
        places = {cpu: _place(root / f"cpu/cpu{cpu}") for cpu in cpu_sets.numbers(members)}
        cores = len(set(places.values()))
        for cpu, (socket, core) in places.items():
            threads = sum(1 for place in places.values() if place == (socket, core))
            first = min(other for other, place in places.items() if place == (socket, core))
            cache = _cache(root / f"cpu/cpu{first}/cache", cores * threads)
            found.append(Processor(cpu, core, socket if cache is None else cache, socket, node))
    try:
        return CpuTopology(found)
    except ValueError as error:
        raise Refused(str(error), subject=str(root / "cpu")) from error


def _place(directory: Path) -> tuple[int, int]:
    """Return (socket, core) of a CPU; without data from the kernel each CPU is a core of socket 0."""
    own = int(directory.name.removeprefix("cpu"))
    socket = _number(directory / "topology/physical_package_id")
    core = _number(directory / "topology/core_id")
    return (0 if socket is None or socket < 0 else socket, own if core is None or core < 0 else core)


def _cache(directory: Path, node_size: int) -> int | None:
    """Return the id of the first cache above the core's own that does not cover the whole node, or None."""
    for index in sorted(directory.glob("index[0-9]*"), key=lambda path: int(path.name.removeprefix("index"))):
        level, number = _number(index / "level"), _number(index / "id")
        if level is None or level <= CORE_CACHES or number is None:
            continue
        sharing = cpu_sets.parse(_text(index / "shared_cpu_list"), str(index / "shared_cpu_list"))
        if sharing.bit_count() != node_size:
            return number
    return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.removeprefix("-").isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
