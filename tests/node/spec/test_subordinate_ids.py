"""Ids of the user `kubelet`: by the machine's `getsubids`, whose stead a script takes here."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput, KubengineError, Unavailable
from engine.node.spec.subordinate_ids import subordinate_ids
from tests.node_rig import Rig


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that sets what `getsubids` prints for users and for groups."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr("engine.node.spec.subordinate_ids.USER", pwd.getpwuid(0).pw_name)

    def set_to(users: str, groups: str | None = None, code: int = 0) -> None:
        (programs / "users").write_text(users)
        (programs / "groups").write_text(users if groups is None else groups)
        script = programs / "getsubids"
        script.write_text(
            f'#!/bin/sh\n[ "$1" = -g ] && cat {programs}/groups || cat {programs}/users\nexit {code}\n'
        )
        script.chmod(0o755)

    return set_to


async def test_one_range_for_users_and_groups(answer):
    answer("0: kubelet 65536 2147483648\n")
    assert await subordinate_ids() == range(65536, 65536 + 2147483648)


async def test_a_missing_user_needs_no_program(answer, monkeypatch: pytest.MonkeyPatch):
    answer("nonsense")
    monkeypatch.setattr("engine.node.spec.subordinate_ids.USER", "nobody-of-this-name")
    assert await subordinate_ids() is None


async def test_a_user_is_one_of_the_machines_own_file(
    answer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """As for the kubelet, which does not ask directory services."""
    answer("0: kubelet 65536 65536\n")
    passwd = tmp_path / "passwd"
    monkeypatch.setattr("engine.node.spec.subordinate_ids.USER", "kubelet")
    monkeypatch.setattr("engine.node.spec.subordinate_ids.PASSWD", passwd)
    assert await subordinate_ids() is None
    passwd.write_text("root:x:0:0::/root:/bin/sh\nkubelets:x:7:7::/:/bin/sh\n")
    assert await subordinate_ids() is None
    passwd.write_text("root:x:0:0::/root:/bin/sh\nkubelet:x:7:7::/:/bin/sh\n")
    assert await subordinate_ids() == range(65536, 131072)


async def test_without_the_program_all_ids_are_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("engine.node.spec.subordinate_ids.USER", pwd.getpwuid(0).pw_name)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await subordinate_ids() is None


@pytest.mark.parametrize(
    ("users", "groups", "code", "kind", "words"),
    [
        ("0: kubelet 65536 65536\n", "0: kubelet 65536 131072\n", 0, InvalidInput, "mismatched subuids"),
        ("", None, 0, InvalidInput, "expected one line"),
        ("0: kubelet 1 2\n1: kubelet 3 4\n", None, 0, InvalidInput, "expected one line"),
        ("0: kubelet one 65536\n", None, 0, InvalidInput, "expected one line"),
        ("0: kubelet 65536 4294967295\n", None, 0, InvalidInput, "expected one line"),
        ("", None, 3, Unavailable, "it exited with 3"),
    ],
)
async def test_anything_else_is_one_error(
    answer, users: str, groups: str | None, code: int, kind: type[KubengineError], words: str
):
    answer(users, groups, code)
    with pytest.raises(kind, match=words) as said:
        await subordinate_ids()
    assert "getsubids" in str(said.value)


async def test_a_node_does_not_start_with_ids_that_are_too_few(answer, rig: Rig):
    answer("0: kubelet 65536 65536\n")
    with pytest.raises(InvalidInput, match="subordinate ids of the user kubelet"):
        await rig.start()
