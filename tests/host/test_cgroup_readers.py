"""Check that every reader of cgroups finds them by the mount table, wherever the hierarchies are mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.host.cgroupfs.mounts import Mounts, find_mounts
from engine.host.cgroupfs.usage import CgroupUsage
from engine.node.stats.group import Groups, children
from engine.runtime import hierarchy

FILES = {
    "m/pod/memory.usage_in_bytes": "1000\n",
    "m/pod/memory.stat": "total_inactive_file 300\n",
    "m/pod/cgroup.procs": "7\n",
    "c/pod/cpuacct.usage": "5000\n",
    "c/pod/cpu.shares": "512\n",
    "p/pod/pids.current": "3\n",
    "u/cgroup.controllers": "hugetlb\n",
}


@pytest.fixture
def hybrid(tmp_path: Path) -> Mounts:
    """Return mounts with v1 hierarchies under unusual names, and a v2 one beside them."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "m/pod/container").mkdir()
    kinds = {"m": "memory", "c": "cpu,cpuacct", "p": "pids", "s": "none,name=systemd"}
    lines = [f"{at} 1 0:{at} / {tmp_path}/{name} rw - cgroup cgroup rw,{options}\n"
             for at, (name, options) in enumerate(kinds.items(), 50)]  # fmt: skip
    (tmp_path / "table").write_text(f"60 1 0:60 / {tmp_path}/u rw - cgroup2 cgroup2 rw\n" + "".join(lines))
    return find_mounts(str(tmp_path), str(tmp_path / "table"))


def test_usage_is_read_from_the_mounted_places(hybrid: Mounts, tmp_path: Path) -> None:
    usage = CgroupUsage("/pod", hybrid)
    assert (usage.in_use(), usage.working_set(), usage.processes()) == (1000, 700, 3)
    usage.close()
    assert list(children("/pod", hybrid)) == ["container"]


def test_the_table_of_groups_reads_the_same_places(hybrid: Mounts) -> None:
    groups = Groups()
    row = groups.add(["/pod"])
    sample = groups.read(hybrid, 100.0).sample(row)
    assert (sample.memory, sample.working_set, sample.cpu, sample.shares) == (1000, 700, 5000, 512)
    assert (sample.threads, sample.processes) == (3, 1)


def test_the_runtime_uses_the_same_places(
    hybrid: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hierarchy, "find_mounts", lambda top: hybrid)
    tops = hierarchy.RuntimeHierarchy(tmp_path)
    assert tops.directories("/pod") == [f"{tmp_path}/{top}/pod" for top in ("m", "c", "p", "s")]


def test_a_controller_that_is_not_mounted_has_no_files(hybrid: Mounts) -> None:
    assert not hybrid.directory("blkio", "/pod").exists()
    assert hybrid.directory("memory", "/pod").exists()
