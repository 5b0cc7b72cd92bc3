"""The compiled counter of descriptors and its twin count the same, in made-up trees and in this process."""

from __future__ import annotations

import os
import random
import resource
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine._fast.reading import _descriptors_c
from engine._fast.reading.descriptors import ABSENT, DESCRIPTOR_COLUMNS, MOST_DESCRIPTORS
from tests.fast.reading import descriptors_twin

LIMITS = "Limit                     Soft Limit           Hard Limit           Units\n"
OPEN_FILES = "Max open files            {}                 524288               files\n"
LONG = 10**12
FORMS = pytest.mark.parametrize("form", [_descriptors_c, descriptors_twin], ids=["compiled", "twin"])


def counted(
    form: Any, proc: Path, mount: Path, cgroups: list[str | None], rows: Any = None
) -> tuple[list[list[int]], int]:
    names = [None if cgroup is None else cgroup.encode() for cgroup in cgroups]
    counts = np.full((len(names), len(DESCRIPTOR_COLUMNS)), 7, np.int64)
    rows = np.arange(len(names)) if rows is None else np.array(rows, np.int64)
    done = form.count_descriptors(str(proc), str(mount), names, rows, counts.reshape(-1), LONG)
    return counts.tolist(), done


def process(proc: Path, pid: int, *leads_to: str, limits: str = LIMITS + OPEN_FILES.format(1024)) -> None:
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "limits").write_text(limits)
    for number, target in enumerate(leads_to):
        (proc / str(pid) / "fd" / str(number)).symlink_to(target)


@FORMS
def test_descriptors_of_a_groups_own_processes(tmp_path: Path, form: Any) -> None:
    proc, top = tmp_path / "proc", tmp_path / "cgroup"
    process(proc, 11, "/dev/null", "socket:[1]", "pipe:[2]", "socket:[3]")
    process(proc, 12, "socket:[1]", "/socket:[9]", limits=LIMITS + OPEN_FILES.format("unlimited"))
    process(proc, 13, limits=LIMITS + OPEN_FILES.format("unlimited"))
    for name, listed in {
        "": "",
        "a": "11\n12\n99\n",
        "a/inner": "13\n",
        "b": "no\n0\n-1\n\n4194305\n",
    }.items():
        (top / name).mkdir(parents=True, exist_ok=True)
        (top / name / "cgroup.procs").write_text(listed)
    found, done = counted(form, proc, top, ["", "a", "a/inner", "b", "gone", None])
    assert done == 6
    assert found == [
        [0, 0, ABSENT],
        [6, 3, 1024],
        [0, 0, -1],
        [0, 0, ABSENT],
        [ABSENT] * 3,
        [ABSENT] * 3,
    ]


@FORMS
def test_only_the_rows_that_are_asked_for_are_counted(tmp_path: Path, form: Any) -> None:
    process(tmp_path, 1, "socket:[1]")
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("1\n")
    assert counted(form, tmp_path, tmp_path, ["a", "b"], rows=[1]) == ([[7, 7, 7], [1, 1, 1024]], 1)
    assert counted(form, tmp_path, tmp_path, ["a", "b"], rows=[]) == ([[7, 7, 7], [7, 7, 7]], 0)


@FORMS
def test_only_the_critical_group_starts_after_the_deadline(tmp_path: Path, form: Any) -> None:
    counts = np.full((3, 3), 7, np.int64)
    rows = np.array([2, 1, 0])
    assert (
        form.count_descriptors(str(tmp_path), str(tmp_path), [b"a", b"b", b"c"], rows, counts.reshape(-1), 0)
        == 1
    )
    assert counts.tolist() == [[7, 7, 7], [7, 7, 7], [ABSENT] * 3]


@FORMS
def test_limits_that_cannot_be_read(tmp_path: Path, form: Any) -> None:
    lines = [
        "",
        "Max open files",
        "Max open files   x  y",
        "Max open files " + "9" * 30,
        "Max open filesystem 3",
    ]
    for pid, line in enumerate(lines, start=1):
        process(tmp_path, pid, limits=f"{LIMITS}{line}\n")
        (tmp_path / f"g{pid}").mkdir()
        (tmp_path / f"g{pid}" / "cgroup.procs").write_text(f"{pid}\n")
    found, _ = counted(form, tmp_path, tmp_path, [f"g{pid}" for pid in range(1, len(lines) + 1)])
    assert [row[2] for row in found] == [ABSENT] * len(lines)


def test_both_forms_count_the_same_of_torn_trees(tmp_path: Path) -> None:
    chance = random.Random(5)
    targets = ["socket:[1]", "socke", "socket", "anon_inode:[eventpoll]", "/a"]
    for pid in range(1, 40):
        limit = OPEN_FILES.format(chance.choice(["5", "-5", "", "unlimited"]))
        leads_to = chance.choices(targets, k=chance.randrange(12))
        process(tmp_path, pid, *leads_to, limits=chance.choice(["", limit]))
        if chance.random() < 0.2:
            (tmp_path / str(pid) / "limits").unlink()
    names: list[str | None] = []
    for group in range(60):
        names.append(f"g{group}")
        (tmp_path / f"g{group}").mkdir()
        words = [chance.choice([str(chance.randrange(60)), "x", "", " 3", "1" * 12]) for _ in range(6)]
        if chance.random() < 0.9:
            (tmp_path / f"g{group}" / "cgroup.procs").write_text("\n".join(words) + chance.choice(["", "\n"]))
    found, expected = (
        counted(form, tmp_path, tmp_path, names) for form in (_descriptors_c, descriptors_twin)
    )
    assert found == expected
    assert len({tuple(row) for row in found[0]}) > 20


@FORMS
def test_a_real_process_and_its_limit(tmp_path: Path, form: Any) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "cgroup.procs").write_text(f"{os.getpid()}\n")
    ((before, sockets, limit),), _ = counted(form, Path("/proc"), tmp_path, ["own"])
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert limit == (-1 if soft == resource.RLIM_INFINITY else soft)
    left, right = socket.socketpair()
    with left, right, (tmp_path / "file").open("w"):
        ((after, more_sockets, _),), _ = counted(form, Path("/proc"), tmp_path, ["own"])
    assert (after - before, more_sockets - sockets) == (3, 2)


@FORMS
def test_a_group_cannot_make_the_counting_long(tmp_path: Path, form: Any) -> None:
    """Every process of a group adds to one sum, which has a bound."""
    count = 2_000
    targets = ["socket:[1]"] * count
    process(tmp_path, 1, *targets)
    (tmp_path / "g").mkdir()
    (tmp_path / "g/cgroup.procs").write_text("1\n" * (MOST_DESCRIPTORS // count + 1))
    found, _ = counted(form, tmp_path, tmp_path, ["g"])
    assert found == [[MOST_DESCRIPTORS, MOST_DESCRIPTORS, 1024]]


@FORMS
def test_a_number_that_is_cut_off_is_no_process(tmp_path: Path, form: Any) -> None:
    """The first 64 KiB of a long list end within `12\n`; process 1 is not in the group."""
    process(tmp_path, 1, "socket:[1]")
    process(tmp_path, 12, "/dev/null")
    (tmp_path / "g").mkdir()
    (tmp_path / "g/cgroup.procs").write_text("12\n" * (1 << 15))
    found, _ = counted(form, tmp_path, tmp_path, ["g"])
    assert found == [[(1 << 16) // 3, 0, 1024]]


@FORMS
def test_wrong_columns_are_refused(tmp_path: Path, form: Any) -> None:
    rows, counts = np.array([0]), np.zeros(3, np.int64)
    with pytest.raises(ValueError, match="other columns"):
        form.count_descriptors("/proc", str(tmp_path), [], rows, counts, 0)
    with pytest.raises(ValueError, match="does not exist"):
        form.count_descriptors("/proc", str(tmp_path), [b"a"], np.array([1]), counts, 0)
    with pytest.raises(ValueError, match="does not exist"):
        form.count_descriptors("/proc", str(tmp_path), [b"a"], np.array([-1]), counts, 0)
