"""Descriptors are counted where something ran, of a few groups per reading and of every group in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine._fast.reading.groups import ABSENT
from engine.node.stats import group as group_module
from engine.node.stats.group import Groups
from tests.laid_out_cgroups import laid_out


class Tree:
    """Write cgroups of one process each, and the processes' descriptors, as files."""

    def __init__(self, top: Path) -> None:
        self.mount, self.proc = top / "cgroup", top / "proc"
        self.groups = Groups()
        self.used = 0

    def group(self, name: str, pid: int | None) -> None:
        (self.mount / name).mkdir(parents=True, exist_ok=True)
        (self.mount / name / "memory.current").write_text("1000\n")
        (self.mount / name / "cgroup.procs").write_text(f"{pid}\n" if pid is not None else "")
        (self.mount / name / "pids.current").write_text("1\n")
        self.runs(name)

    def runs(self, name: str) -> None:
        self.used += 1
        (self.mount / name / "cpu.stat").write_text(f"usage_usec {self.used}\n")

    def opens(self, pid: int, descriptors: int) -> None:
        directory = self.proc / str(pid) / "fd"
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(descriptors):
            if not (directory / str(number)).is_symlink():
                (directory / str(number)).symlink_to("socket:[1]" if number % 2 else "/dev/null")

    def read(self) -> tuple[list[int], list[int]]:
        mounts = laid_out(self.mount)
        table = self.groups.read(mounts, 100.0 + self.used)
        self.groups.count_descriptors(table, mounts, self.proc)
        return table.opened("descriptors").tolist(), table.opened("sockets").tolist()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_only_groups_in_which_something_ran_are_counted_again(tree: Tree) -> None:
    for pid, name in ((1, "a"), (2, "b")):
        tree.group(name, pid)
        tree.opens(pid, pid)
        tree.groups.add([name])
    tree.group("empty", None)
    tree.groups.add(["empty", "gone"])
    assert tree.read() == ([1, 2, ABSENT, ABSENT], [0, 1, ABSENT, ABSENT])
    tree.opens(1, 5)
    tree.opens(2, 6)
    tree.runs("b")
    assert tree.read() == ([1, 6, ABSENT, ABSENT], [0, 3, ABSENT, ABSENT])


def test_every_group_has_its_turn(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "MOST_COUNTED", 2)
    names = "abcde"
    for pid, name in enumerate(names, start=1):
        tree.group(name, pid)
        tree.opens(pid, pid)
        tree.groups.add([name])
    for expected in ([1, 2, *[ABSENT] * 3], [1, 2, 3, 4, ABSENT], [1, 2, 3, 4, 5]):
        for name in names:
            tree.runs(name)
        assert tree.read()[0] == expected
    for pid in range(1, 6):
        tree.opens(pid, 10)
    seen = []
    for _ in range(3):
        for name in names:
            tree.runs(name)
        seen.append(tree.read()[0])
    assert seen[-1] == [10] * 5, "though the first groups run all the time"


def test_a_group_that_moves_keeps_what_was_counted(tree: Tree) -> None:
    tree.group("p", None)
    tree.group("p/a", 1)
    tree.opens(1, 3)
    first = tree.groups.add(["p", "p/a"])
    assert tree.read()[0] == [ABSENT, 3]
    tree.groups.drop(first, 2)
    again = tree.groups.add(["p", "p/a", "p/b"], {"p": first, "p/a": first + 1})
    found = tree.read()[0]
    assert found[first : first + 2] == [ABSENT, ABSENT]
    assert found[again : again + 2] == [ABSENT, 3]
