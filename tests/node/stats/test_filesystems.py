"""Filesystems on block devices are found in the table of mounts, and their disks in the kernel's counters."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.host.mountinfo import block_devices
from engine.node.stats.filesystems import (
    MOST_FILESYSTEMS,
    MOUNTS_SECONDS,
    Filesystem,
    Filesystems,
    disk_counts,
)

MOUNTS = r"""27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
28 27 0:21 / /proc rw - proc proc rw
29 27 254:17 / /var/lib/my\040disk rw,relatime shared:63 - xfs /dev/vdb1 rw
30 27 254:0 /kubelet /var/lib/kubelet rw - ext4 /dev/vda rw
31 27 0:44 / /data rw - btrfs /dev/vdc rw
32 27 0:45 / /run rw - tmpfs tmpfs rw
torn - ext4
33 27 x:y / /mnt rw - ext4 /dev/vdd rw"""
DISKS = """ 254       0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13
 254      17 vdb1 10 20 30 40 50 60 70 80 90 100 110
   8       0 sda 1 2 3
   8       1 sdb 1 2 3 4 5 6 7 8 9 x 11
"""


def test_each_block_device_has_its_first_mount_point(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert block_devices(str(tmp_path / "mountinfo")) == {
        "/dev/vda": ("/", (254, 0)),
        "/dev/vdb1": ("/var/lib/my disk", (254, 17)),
        "/dev/vdc": ("/data", (0, 44)),
    }


def test_counters_of_whole_lines_only() -> None:
    assert disk_counts(DISKS) == {(254, 0): tuple(range(1, 12)), (254, 17): tuple(range(10, 120, 10))}


def test_mounts_are_read_again_after_a_while(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    mounts = tmp_path / "self/mountinfo"
    mounts.write_text(
        f"1 1 254:0 / {tmp_path} rw - ext4 /dev/vda rw\n2 1 8:1 / /gone/x rw - ext4 /dev/sda1 rw\n"
    )
    (tmp_path / "diskstats").write_text(DISKS)
    has = os.statvfs(tmp_path)
    filesystems = Filesystems(tmp_path)
    (found,) = filesystems.read(1000.0)
    assert (found.device, found.limit, found.disk) == (
        "/dev/vda", has.f_blocks * has.f_frsize, tuple(range(1, 12)),
    )  # fmt: skip
    assert 0 < found.usage < found.limit
    assert found.inodes == has.f_files
    mounts.unlink()
    assert [each.device for each in filesystems.read(1000.0 + MOUNTS_SECONDS - 1)] == ["/dev/vda"]
    assert filesystems.read(1000.0 + MOUNTS_SECONDS) == []


def test_a_clock_that_is_set_back_reads_mounts_again(tmp_path: Path) -> None:
    filesystems = Filesystems(tmp_path)
    assert filesystems.read(1000.0) == []
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(f"1 1 254:0 / {tmp_path} rw - ext4 /dev/vda rw\n")
    assert [each.disk for each in filesystems.read(10.0)] == [()]


def test_their_number_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    lines = [f"1 1 8:{at} / {tmp_path} rw - ext4 /dev/s{at} rw" for at in range(MOST_FILESYSTEMS + 50)]
    (tmp_path / "self/mountinfo").write_text("\n".join(lines))
    assert len(Filesystems(tmp_path).read(0.0)) == MOST_FILESYSTEMS


def test_the_machines_own() -> None:
    found = Filesystems().read(0.0)
    if not found:
        pytest.skip("no filesystem on a block device is mounted here")
    assert all(isinstance(each, Filesystem) and each.limit >= each.usage >= 0 for each in found)
