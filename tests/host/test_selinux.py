"""What the agent reads of SELinux, from directories like those of a machine with a policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.host import selinux
from engine.host.mountinfo import Mounted
from engine.host.selinux import SELinux, has_mount_label, mount_option, read_selinux, takes_labels

FILE = "system_u:object_r:container_file_t:s0"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Write what a Fedora machine has."""
    for path, text in (
        ("sys/fs/selinux/enforce", "1"),
        ("proc/self/attr/current", "system_u:system_r:kubelet_t:s0\0"),
        ("etc/selinux/config", "# comment\nSELINUX=enforcing\nSELINUXTYPE=targeted\n"),
        ("etc/selinux/targeted/contexts/lxc_contexts", f'process = "x:y:z:s0"\nfile = "{FILE}"\n'),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_policy_gives_the_default_label_of_files(machine: Path) -> None:
    assert read_selinux(machine) == SELinux(True, FILE)


def test_contexts_of_the_container_package_replace_those_of_the_policy(machine: Path) -> None:
    contexts = machine / "usr/share/containers/selinux/contexts"
    contexts.parent.mkdir(parents=True)
    contexts.write_text('; comment\nfile = "a_u:b_r:c_t:s0"\n')
    assert read_selinux(machine).container_file == "a_u:b_r:c_t:s0"


def test_machine_without_selinux_is_disabled(tmp_path: Path) -> None:
    assert read_selinux(tmp_path) == SELinux(False, "")


def test_kernel_without_a_loaded_policy_is_disabled(machine: Path) -> None:
    (machine / "proc/self/attr/current").write_text("kernel\0")
    assert not read_selinux(machine).enabled


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"file\n", b"=\n" * 100_000])
def test_unreadable_contexts_leave_files_without_a_label(machine: Path, content: bytes) -> None:
    (machine / "etc/selinux/targeted/contexts/lxc_contexts").write_bytes(content)
    found = read_selinux(machine)
    assert found == SELinux(True, "")
    assert found.file_label(user="", level="s0:c1") == ""


@pytest.mark.parametrize(
    ("user", "level", "label"),
    [
        ("", "s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2"),
        ("staff_u", "s0:c1,c2", "staff_u:object_r:container_file_t:s0:c1,c2"),
        ("staff_u", "", ""),
    ],
)
def test_label_takes_user_and_level_of_the_process(user: str, level: str, label: str) -> None:
    assert SELinux(True, FILE).file_label(user=user, level=level) == label
    assert SELinux(False, FILE).file_label(user=user, level=level) == ""


def test_mount_option_quotes_the_label() -> None:
    assert mount_option("u:r:t:s0:c1,c2") == ['context="u:r:t:s0:c1,c2"']
    assert mount_option("") == []


@pytest.mark.parametrize(
    ("options", "label", "found"),
    [
        ('rw,context="u:r:t:s0:c1,c2"', "u:r:t:s0:c1,c2", True),
        ('rw,context="u:r:t:s0:c1,c2"', "u:r:t:s0:c1,c3", False),
        ("rw,context=u:r:t:s0", "u:r:t:s0", True),
        ("rw,seclabel", "u:r:t:s0", False),
    ],
)
def test_the_label_of_a_mount_is_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, label: str, found: bool
) -> None:
    table = [Mounted(str(tmp_path), "ext4", frozenset(options.split(",")))]
    monkeypatch.setattr(selinux, "mounted", lambda: table)
    assert has_mount_label(tmp_path, label) is found


def test_innermost_mount_decides_whether_files_take_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = [
        Mounted("/", "ext4", frozenset({"rw", "seclabel"})),
        Mounted(str(tmp_path), "nfs4", frozenset({"rw"})),
    ]
    monkeypatch.setattr(selinux, "mounted", lambda: table)
    assert not takes_labels(tmp_path / "below")
    assert takes_labels(Path("/"))
