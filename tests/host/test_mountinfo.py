"""The mount table as it is, and lines that no parser should fall over."""

from __future__ import annotations

from pathlib import Path

from engine.host.mountinfo import Mounted, mounted, reachable


def test_a_table_is_read_with_its_escapes_and_optional_fields(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "26 24 0:22 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "30 24 0:25 / /with\\040blank/ä ro - tmpfs tmpfs\n"
        "31 24 0:26 / /cut\n"
        "\n"
    )
    assert mounted(str(table))[0] == Mounted(
        "/sys/fs/cgroup/cpu,cpuacct", "cgroup", frozenset({"rw", "nosuid", "cpu", "cpuacct"}), "0:22"
    )
    assert [mount.kind for mount in mounted(str(table))] == ["cgroup", "tmpfs"]
    assert mounted(str(table))[1].point == "/with blank/ä"


def test_this_machines_table_names_the_root() -> None:
    assert "/" in {mount.point for mount in mounted()}


def test_an_overmounted_mount_is_unreachable(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "20 20 0:1 / / rw - ext4 root rw\n"
        "21 20 0:2 / /sys rw - sysfs old rw\n"
        "22 21 0:3 / /sys/fs/cgroup rw - tmpfs old rw\n"
        "23 22 0:4 / /sys/fs/cgroup/unified rw - cgroup2 old rw\n"
        "24 20 0:5 / /system rw - tmpfs beside rw\n"
        "30 21 0:6 / /sys rw - sysfs new rw\n"
        "31 30 0:7 / /sys/fs/cgroup rw - tmpfs new rw\n"
        "32 31 0:8 / /sys/fs/cgroup/memory rw - cgroup new rw,memory\n"
    )
    kinds = ("ext4", "sysfs", "tmpfs", "cgroup", "cgroup2")
    assert [mount.point for mount in reachable(kinds, str(table))] == [
        "/", "/system", "/sys", "/sys/fs/cgroup", "/sys/fs/cgroup/memory",
    ]  # fmt: skip
    (group,) = reachable(("cgroup", "cgroup2"), str(table))
    assert group.point == "/sys/fs/cgroup/memory"


def test_every_reachable_package_is_listed() -> None:
    assert all(Path(mount.point).exists() for mount in reachable(("cgroup", "cgroup2", "proc")))
