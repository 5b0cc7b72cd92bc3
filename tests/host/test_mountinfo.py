"""The mount table as it is, and lines that no parser should fall over."""

from __future__ import annotations

from pathlib import Path

from engine.host.mountinfo import Mounted, mounted


def test_a_table_is_read_with_its_escapes_and_optional_fields(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "26 24 0:22 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "30 24 0:25 / /with\\040blank/ä ro - tmpfs tmpfs\n"
        "31 24 0:26 / /cut\n"
        "\n"
    )
    assert mounted(str(table))[0] == Mounted(
        "/sys/fs/cgroup/cpu,cpuacct", "cgroup", frozenset({"rw", "nosuid", "cpu", "cpuacct"})
    )
    assert [mount.kind for mount in mounted(str(table))] == ["cgroup", "tmpfs"]
    assert mounted(str(table))[1].point == "/with blank/ä"


def test_this_machines_table_names_the_root() -> None:
    assert "/" in {mount.point for mount in mounted()}
