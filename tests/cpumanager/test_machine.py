"""The topology is read from sysfs as cAdvisor reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.cpumanager.machine import online_cpus, read_topology
from engine.cpumanager.topology import Processor


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def machine(root: Path, *, online: str = "0-7", nodes: dict[int, str] | None = None, l3: int = 2) -> Path:
    """Eight CPUs, two threads a core; `l3` cores share a last-level cache."""
    write(root / "cpu/online", online)
    for node, members in (nodes if nodes is not None else {0: "0-1,4-5", 1: "2-3,6-7"}).items():
        write(root / f"node/node{node}/cpulist", members)
    for cpu in range(8):
        core = cpu % 4
        directory = root / f"cpu/cpu{cpu}"
        write(directory / "topology/core_id", str(core % 2))
        write(directory / "topology/physical_package_id", str(core // 2))
        sharing = [one for one in range(8) if one % 4 // l3 == core // l3]
        for index, (level, members) in enumerate([(1, [core, core + 4]), (3, sharing)]):
            write(directory / f"cache/index{index}/level", str(level))
            write(directory / f"cache/index{index}/id", str(10 + core // l3))
            write(directory / f"cache/index{index}/shared_cpu_list", ",".join(map(str, members)))
    return root


def test_a_cache_as_large_as_its_node_is_the_socket(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path))
    assert topology.processors[1] == Processor(1, 1, 0, 0, 0)
    assert topology.processors[6] == Processor(6, 0, 1, 1, 1)
    assert topology.layout.cores == {0: 0x11, 1: 0x22, 2: 0x44, 3: 0x88}
    assert topology.threads_per_core == 2


def test_split_caches_have_their_ids(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path, l3=1))
    assert [one.cache for one in topology.processors] == [10, 11, 12, 13, 10, 11, 12, 13]


def test_offline_cpus_are_left_out(tmp_path: Path) -> None:
    root = machine(tmp_path, online="0-2,4-7")
    assert online_cpus(root) == 0xF7
    topology = read_topology(root)
    assert topology.cpus == 0xF7
    assert topology.layout.cores[7] == 0x80


def test_a_node_without_cpus_and_a_kernel_without_nodes(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path / "a", nodes={0: "0-7", 1: ""}))
    assert topology.nodes == (0,)
    topology = read_topology(machine(tmp_path / "b", nodes={}))
    assert topology.nodes == (0,)
    assert topology.cpus == 0xFF


def test_an_unreadable_machine_topology_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cpu/online"):
        read_topology(tmp_path)
