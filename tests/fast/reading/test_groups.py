"""The compiled reader of cgroups and its twin read the same from trees of files, sound and torn."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine._fast.reading import _groups_c
from engine._fast.reading.groups import ABSENT, COLUMNS, PRESSURE
from tests.fast.reading import groups_twin

NUMBERS = ["0", "7", "-1", "max", "", " 3", "3 ", "1x", "-", "é", "9" * 30, "-" + "9" * 30, "0" * 30 + "12"]
NUMBERS += [str(value) for value in (2**62 - 1, 2**62, 2**63 - 4096, 2**63 - 1)]
FLAT = """
usage_usec user_usec file_dirty total_dirty
 system_usec nr_periods nr_throttled throttled_usec anon file inactive_file
file_mapped pgfault pgmajfault max oom_kill user system throttled_time total_rss total_cache total_swap
total_inactive_file total_mapped_file total_pgfault total_pgmajfault
active_file total_active_file nr_bursts burst_usec burst_time"""
LINES = ["8:0 Read {}", "8:0 Write {}", "253:1 Read {}", "Total {}", "8:0 Sync {}", "x:1 Read {}",
         "8:0 rbytes={} wbytes=2 rios=3 wios=4 dbytes=0 dios=0", "8:16", "8:0 rbytes=1 wbytes={}",
         "259:3 rbytes=1 rbytes={} wbytes=1 rios=1 wios=1",
         "some avg10={}.50 avg60=0.20 avg300=0.00 total=77", "full avg10=1.00 avg60=0.2 avg300=0.00 total={}",
         "full avg10=0.00 avg60=0.00 avg300=0.00 total={}", "some total={}", "{}", "{} 100000"]  # fmt: skip
WIDTH = len(COLUMNS) + 4 * len(PRESSURE)
V1 = {
    "cpuacct": "cpuacct.usage cpuacct.stat",
    "cpu": "cpu.stat cpu.shares cpu.cfs_quota_us cpu.cfs_period_us",
    "memory": "memory.usage_in_bytes memory.limit_in_bytes memory.max_usage_in_bytes memory.failcnt "
    "memory.memsw.limit_in_bytes memory.stat memory.oom_control cgroup.procs",
    "pids": "pids.current pids.max",
    "blkio": "blkio.throttle.io_service_bytes_recursive blkio.throttle.io_service_bytes "
    "blkio.throttle.io_serviced_recursive blkio.throttle.io_serviced",
}
V2 = {
    "": "cpu.stat cpu.weight cpu.max memory.current memory.max memory.peak memory.swap.max "
    "memory.swap.current memory.stat memory.events cgroup.procs pids.current pids.max "
    "io.stat cpu.pressure memory.pressure io.pressure",
}


Read = tuple[Any, Any, Any]


def read(form: Any, mount: Path, cgroups: list[str], v1: bool, before: Any = None, **columns: Any) -> Read:
    """Read all cgroups without earlier numbers, or again over the numbers of a read `before`."""
    names = [cgroup.strip("/").encode() for cgroup in cgroups]
    numbers = np.full((len(names), WIDTH), ABSENT, np.int64) if before is None else before.copy()
    parents = np.array(columns.get("parents", [-1] * len(names)), np.int64)
    due = np.array(columns.get("due", [0] * len(names)), np.uint8)
    tops = [str(mount / each) for each in V1] if v1 else [str(mount)]
    moved, io = form.refresh_groups(tops, names, parents, due, numbers.reshape(-1))
    return numbers, moved, io


def some_text(chance: random.Random) -> str:
    lines = []
    for _ in range(chance.choice([1, 2, 9, 30])):
        shape = chance.choice([chance.choice(LINES), chance.choice(FLAT.split()) + " {}", "{}"])
        lines.append(shape.replace("{}", chance.choice(NUMBERS)))
    return "\n".join(lines) + chance.choice(["\n", "\n", ""])


@pytest.mark.parametrize("v1", [True, False], ids=["v1", "v2"])
def test_both_forms_read_the_same(tmp_path: Path, v1: bool) -> None:
    """At first, and again and again as some files change, by groups within groups."""
    chance = random.Random(11)
    cgroups, parents = [], []
    for pod in range(30):
        cgroups += [f"/kube/g{pod}", *(f"/kube/g{pod}/c{each}" for each in range(3))]
        parents += [-1, *[4 * pod] * 3]
    files: list[Path] = []
    for cgroup in cgroups:
        for controller, names in (V1 if v1 else V2).items():
            directory = tmp_path / controller / cgroup.strip("/")
            if chance.random() < 0.05:
                continue
            directory.mkdir(parents=True, exist_ok=True)
            for name in names.split():
                kind = chance.random()
                if kind < 0.05:
                    (directory / name).mkdir()
                elif kind < 0.9:
                    files.append(directory / name)
                    files[-1].write_text(some_text(chance))
                if (directory / name).is_file() and chance.random() < 0.6:
                    (directory / name).write_text(CALM.get(name, "7\n"))
    numbers, moved, io = read(_groups_c, tmp_path, cgroups, v1, parents=parents)
    expected, moved_too, expected_io = read(groups_twin, tmp_path, cgroups, v1, parents=parents)
    rested = 0
    for _ in range(12):
        for row, cgroup in enumerate(cgroups):
            assert numbers[row].tolist() == expected[row].tolist(), cgroup
        assert moved == moved_too
        assert io == expected_io
        rested += len(cgroups) - sum(moved)
        for file in chance.sample(files, 5):
            file.write_text(CALM.get(file.name, "").replace("7", "9") or some_text(chance))
        columns = {"parents": parents, "due": [chance.random() < 0.05 for _ in cgroups]}
        numbers, moved, io = read(_groups_c, tmp_path, cgroups, v1, numbers, **columns)
        expected, moved_too, expected_io = read(groups_twin, tmp_path, cgroups, v1, expected, **columns)
    assert rested
    assert len(expected_io)
    wanted = set(range(len(COLUMNS) if v1 else WIDTH))
    assert {column for column in wanted if not (numbers[:, column] != ABSENT).any()} == set()


CALM = {
    "cpuacct.usage": "7\n", "memory.usage_in_bytes": "7\n", "memory.current": "7\n",
    "cpu.stat": "usage_usec 7\nuser_usec 3\nsystem_usec 4\nnr_periods 7\nnr_throttled 7\n"
    "throttled_usec 7\nthrottled_time 7\nnr_bursts 7\nburst_usec 7\nburst_time 7\n",
    "memory.stat": "".join(f"{name} 7\n" for name in FLAT.split() if "dirty" not in name)
    + "total_writeback 0\nfile_writeback 0\n",
    "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
    "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
}  # fmt: skip
"""What files of a group say in which little goes on."""
STEADY = {
    "cpu.stat": "usage_usec 7\n", "memory.current": "70\n", "memory.max": "max\n",
    "memory.stat": "anon 5\nfile_dirty 0\nfile_writeback 0\n", "pids.current": "2\n",
    "cgroup.procs": "4\n5\n",
    "io.stat": "8:0 rbytes=1 wbytes=2 rios=3 wios=4\n",
    "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
}  # fmt: skip


@pytest.mark.parametrize("form", [_groups_c, groups_twin])
@pytest.mark.parametrize(
    ("changed", "due", "moves"),
    [
        ({}, False, "none"),
        ({"cpu.stat": "usage_usec 8\n"}, False, "changed"),
        ({"memory.current": "69\n"}, False, "changed"),
        ({"memory.max": "100\n"}, False, "none"),
        ({"memory.max": "100\n"}, True, "none"),
        ({"memory.max": "100\n", "cpu.stat": "usage_usec 8\n"}, True, "changed"),
        ({"memory.stat": "anon 6\n"}, False, "none"),
        ({"memory.stat": "anon 6\n"}, True, "none"),
    ],
)
def test_resting_groups_are_not_read_again(
    tmp_path: Path, form: Any, changed: dict[str, str], due: bool, moves: str
) -> None:
    for cgroup in ("pod", "pod/inner"):
        (tmp_path / cgroup).mkdir()
        for name, text in STEADY.items():
            (tmp_path / cgroup / name).write_text(text)
    columns: dict[str, Any] = {"parents": [-1, 0]}
    first, moved, io = read(form, tmp_path, ["pod", "pod/inner"], False, **columns)
    assert (list(moved), len(io)) == ([1, 1], 2)
    for cgroup in ("pod", "pod/inner"):
        for name, text in {**changed, "pids.current": "3\n", "cgroup.procs": "4\n5\n6\n"}.items():
            (tmp_path / cgroup / name).write_text(text)
    columns["due"] = [due, due]
    again, moved, io = read(form, tmp_path, ["pod", "pod/inner"], False, first, **columns)
    read_again = moves == "changed"
    assert list(moved) == [read_again] * 2
    assert len(io) == 2 * read_again
    assert again[:, COLUMNS.index("threads")].tolist() == [3 if read_again else 2] * 2
    assert again[:, COLUMNS.index("processes")].tolist() == [3 if read_again else 2] * 2
    looked_at = {name: text for name, text in changed.items() if due or read_again}
    rss = 6 if "memory.stat" in looked_at else 5
    assert again[:, COLUMNS.index("rss")].tolist() == [rss] * 2
    limited = 100 if "memory.max" in looked_at and due else ABSENT
    assert again[:, COLUMNS.index("memory_limit")].tolist() == [limited] * 2


@pytest.mark.parametrize("form", [_groups_c, groups_twin])
@pytest.mark.parametrize(
    "unsettled",
    [{"memory.stat": "anon 5\nfile_dirty 4096\n"}, {"memory.stat": "file_writeback 1\n"},
     {"cpu.pressure": "some avg10=0.00 avg60=0.01 avg300=0.00 total=7\n"}],
)  # fmt: skip
def test_counters_that_advance_on_their_own_are_read(
    tmp_path: Path, form: Any, unsettled: dict[str, str]
) -> None:
    for name, text in {**STEADY, **unsettled}.items():
        (tmp_path / name).write_text(text)
    first, _, _ = read(form, tmp_path, ["/"], False)
    again, moved, io = read(form, tmp_path, ["/"], False, first)
    assert (list(moved), len(io)) == ([1], 1)
    for name, text in STEADY.items():
        (tmp_path / name).write_text(text)
    settled, moved, _ = read(form, tmp_path, ["/"], False, again)
    assert list(moved) == [1]
    assert read(form, tmp_path, ["/"], False, settled)[1] == b"\0"


@pytest.mark.parametrize("form", [_groups_c, groups_twin])
def test_columns_that_do_not_fit_are_refused(tmp_path: Path, form: Any) -> None:
    for columns in ({"parents": [0]}, {"parents": [-1, -1]}, {"due": [0, 0]}):
        with pytest.raises(ValueError, match="group"):
            read(form, tmp_path, ["a"], False, **columns)


@pytest.mark.parametrize("form", [_groups_c, groups_twin])
def test_processes_are_counted_to_the_end(tmp_path: Path, form) -> None:
    (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in range(7, 50_007)))
    (tmp_path / "memory.stat").write_text("x 1\n" * 20_000 + "anon 5\n")
    numbers, _, _ = read(form, tmp_path, ["/", "/" + "long/" * 900, "none"], False)
    assert numbers[0, COLUMNS.index("processes")] == 50_000
    assert numbers[0, COLUMNS.index("first_process")] == 7
    assert numbers[0, COLUMNS.index("rss")] == ABSENT  # behind the first 64 KiB
    assert (numbers[1:] == ABSENT).all()
    assert numbers.shape == (3, len(COLUMNS) + 4 * len(PRESSURE))
    assert numbers.dtype == np.int64


@pytest.mark.parametrize("form", [_groups_c, groups_twin])
def test_no_groups(tmp_path: Path, form) -> None:
    numbers, _, io = read(form, tmp_path, [], True)
    assert (numbers.shape[0], io) == (0, [])


@pytest.mark.parametrize("form", [_groups_c, groups_twin])
def test_nobodys_row_has_nothing(tmp_path: Path, form: Any) -> None:
    for name, text in STEADY.items():
        (tmp_path / name).write_text(text)
    numbers = np.full((2, WIDTH), 7, np.int64)
    parents, due = np.full(2, -1, np.int64), np.zeros(2, np.uint8)
    moved, io = form.refresh_groups([str(tmp_path)], [None, b""], parents, due, numbers.reshape(-1))
    assert (numbers[0] == ABSENT).all()
    assert numbers[1, COLUMNS.index("memory")] == 70
    assert list(moved) == [1, 1]
    assert io == [(1, 8, 0, 1, 2, 3, 4)]
