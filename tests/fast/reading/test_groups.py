"""The compiled reader of cgroups and its twin read the same from trees of files, sound and torn."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from engine._fast.reading import _groups_c, _groups_py
from engine._fast.reading.groups import ABSENT, COLUMNS, PRESSURE

NUMBERS = ["0", "7", "-1", "max", "", " 3", "3 ", "1x", "-", "é", "9" * 30, "-" + "9" * 30, "0" * 30 + "12"]
NUMBERS += [str(value) for value in (2**62 - 1, 2**62, 2**63 - 4096, 2**63 - 1)]
FLAT = """
usage_usec user_usec system_usec nr_periods nr_throttled throttled_usec anon file inactive_file
file_mapped pgfault pgmajfault max oom_kill user system throttled_time total_rss total_cache total_swap
total_inactive_file total_mapped_file total_pgfault total_pgmajfault"""
LINES = ["8:0 Read {}", "8:0 Write {}", "253:1 Read {}", "Total {}", "8:0 Sync {}", "x:1 Read {}",
         "8:0 rbytes={} wbytes=2 rios=3 wios=4 dbytes=0 dios=0", "8:16", "8:0 rbytes=1 wbytes={}",
         "259:3 rbytes=1 rbytes={} wbytes=1 rios=1 wios=1",
         "some avg10={}.50 avg60=0.20 avg300=0.00 total=77", "full avg10=1.00 avg60=0.2 avg300=0.00 total={}",
         "full avg10=0.00 avg60=0.00 avg300=0.00 total={}", "some total={}", "{}", "{} 100000"]  # fmt: skip
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


def some_text(chance: random.Random) -> str:
    lines = []
    for _ in range(chance.choice([1, 2, 9, 30])):
        shape = chance.choice([chance.choice(LINES), chance.choice(FLAT.split()) + " {}", "{}"])
        lines.append(shape.replace("{}", chance.choice(NUMBERS)))
    return "\n".join(lines) + chance.choice(["\n", "\n", ""])


@pytest.mark.parametrize("v1", [True, False], ids=["v1", "v2"])
def test_both_forms_read_the_same(tmp_path: Path, v1: bool) -> None:
    chance = random.Random(11)
    cgroups = [f"/kube/g{row}" for row in range(120)]
    for cgroup in cgroups:
        for controller, names in (V1 if v1 else V2).items():
            directory = tmp_path / controller / cgroup.strip("/")
            if chance.random() < 0.05:
                continue
            directory.mkdir(parents=True)
            for name in names.split():
                kind = chance.random()
                if kind < 0.05:
                    (directory / name).mkdir()
                elif kind < 0.9:
                    (directory / name).write_text(some_text(chance))
    numbers, io = _groups_c.read_groups(str(tmp_path), cgroups, v1)
    expected, expected_io = _groups_py.read_groups(str(tmp_path), cgroups, v1)
    for row, cgroup in enumerate(cgroups):
        assert numbers[row].tolist() == expected[row].tolist(), cgroup
    assert io == expected_io
    assert io
    wanted = set(range(len(COLUMNS) if v1 else numbers.shape[1]))
    assert {column for column in wanted if not (numbers[:, column] != ABSENT).any()} == set()


@pytest.mark.parametrize("form", [_groups_c, _groups_py])
def test_processes_are_counted_to_the_end(tmp_path: Path, form) -> None:
    (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in range(7, 50_007)))
    (tmp_path / "memory.stat").write_text("x 1\n" * 20_000 + "anon 5\n")
    numbers, _ = form.read_groups(str(tmp_path), ["/", "/" + "long/" * 900, "none"], False)
    assert numbers[0, COLUMNS.index("processes")] == 50_000
    assert numbers[0, COLUMNS.index("first_process")] == 7
    assert numbers[0, COLUMNS.index("rss")] == ABSENT  # behind the first 64 KiB
    assert (numbers[1:] == ABSENT).all()
    assert numbers.shape == (3, len(COLUMNS) + 4 * len(PRESSURE))
    assert numbers.dtype == np.int64


@pytest.mark.parametrize("form", [_groups_c, _groups_py])
def test_no_groups(tmp_path: Path, form) -> None:
    numbers, io = form.read_groups(str(tmp_path), [], True)
    assert (numbers.shape[0], io) == (0, [])
