"""The node's osImage is the name in os-release(5), as Python reads it, without the module that reads it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from engine.node.nodeinfo import machine


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\n',
            "Debian GNU/Linux 12 (bookworm)",
        ),
        ("PRETTY_NAME='Alpine Linux v3.20'\n", "Alpine Linux v3.20"),
        ("PRETTY_NAME=Void\n", "Void"),
        ('PRETTY_NAME="A \\"quoted\\" \\$name"\n', 'A "quoted" $name'),
        ("NAME=nothing\n", "Linux"),
    ],
)
def test_a_name_with_any_quotes(
    text: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "os-release").write_text(text)
    monkeypatch.setattr(machine, "OS_RELEASE", (tmp_path / "missing", tmp_path / "os-release"))
    assert machine._os_name() == name


def test_this_machine_has_the_name_that_python_reads() -> None:
    try:
        expected = platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        expected = "Linux"
    assert machine._os_name() == expected
