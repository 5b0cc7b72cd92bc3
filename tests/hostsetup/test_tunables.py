"""Kernel tunables are set, or with protectKernelDefaults checked, in a stand-in for /proc/sys."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.hostsetup.tunables import TUNABLES, check_tunables, set_tunables


@pytest.fixture
def sysctls(tmp_path: Path) -> Path:
    for name in TUNABLES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("0\n")
    return tmp_path


def values(directory: Path) -> dict[str, int]:
    return {name: int((directory / name).read_text()) for name in TUNABLES}


def test_they_are_what_a_kubelet_leaves(sysctls: Path):
    set_tunables(sysctls)
    assert values(sysctls) == {
        "vm/overcommit_memory": 1,
        "vm/panic_on_oom": 0,
        "kernel/panic": 10,
        "kernel/panic_on_oops": 1,
        "kernel/keys/root_maxkeys": 1_000_000,
        "kernel/keys/root_maxbytes": 25_000_000,
    }
    check_tunables(sysctls)


def test_one_that_is_right_is_not_written(sysctls: Path):
    set_tunables(sysctls)
    before = (sysctls / "kernel/panic").stat().st_mtime_ns
    set_tunables(sysctls)
    assert (sysctls / "kernel/panic").stat().st_mtime_ns == before


def test_protected_ones_are_named_with_both_values(sysctls: Path):
    with pytest.raises(Refused) as caught:
        check_tunables(sysctls)
    assert "invalid kernel flag: kernel/panic, expected value: 10, actual value: 0" in str(caught.value)
    assert "vm/panic_on_oom" not in str(caught.value)
    assert values(sysctls)["kernel/panic"] == 0


def test_an_unwritable_tunable_is_one_warning(sysctls: Path, caplog: pytest.LogCaptureFixture):
    (sysctls / "kernel/keys/root_maxkeys").unlink()
    (sysctls / "kernel/keys/root_maxkeys").mkdir()
    (sysctls / "kernel/panic").unlink()
    (sysctls / "kernel/panic").mkdir()
    set_tunables(sysctls)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "kernel/panic=10 (Is a directory)" in warnings[0]
    left = ("vm/overcommit_memory", "kernel/panic_on_oops")
    assert [(sysctls / name).read_text() for name in left] == ["1\n", "1\n"]
