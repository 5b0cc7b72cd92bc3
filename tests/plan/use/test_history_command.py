"""The command `plan history`: the file that it writes, and what it says of wrong options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.plan.history.history_file import read_history
from tests.plan.use.made_up_use import END, TIMES, needs_prometheus


@needs_prometheus
def test_the_command_writes_a_file_and_lists_faults(
    server: str, run_plan: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "use.arrow"
    done = run_plan("history", "--prometheus", server, "--days", "0.25", "--until", str(END), "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert b"72 moments" in done.stderr
    assert b"has several series" in done.stderr
    assert read_history(file).times == TIMES
    done = run_plan("history", "--prometheus", server, "--strict", "--until", str(END), "-o", str(file))
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a server with --prometheus, or files with --table"),
        (("--prometheus", "http://h"), "--output: name the file to write"),
        (("--prometheus", "h:9090", "-o", "x"), "expected http://HOST:PORT"),
        (("--prometheus", "http://h", "-o", "x", "--step", "90"), "--step: '90' is not a duration"),
        (("--prometheus", "http://h", "-o", "x", "--until", "soon"), "--until: expected Unix seconds"),
        (("--prometheus", "http://h", "-o", "x", "--header", "a"), "--header: expected KEY=VALUE"),
        (
            ("--prometheus", "http://h", "-o", "x", "--bearer-token-file", "/nowhere"),
            "/nowhere: cannot be read",
        ),
    ],
)
def test_the_command_names_what_is_wrong(
    arguments: tuple[str, ...], said: str, run_plan: Callable[..., Any]
) -> None:
    done = run_plan("history", *arguments)
    assert done.returncode != 0
    assert said in done.stderr.decode()


def test_days_must_be_a_number(run_plan: Callable[..., Any], tmp_path: Path) -> None:
    done = run_plan(
        "history", "--prometheus", "http://127.0.0.1:1", "--days", "nan", "-o", str(tmp_path / "x")
    )
    assert done.returncode == 2
    assert b"--days: expected a number, got nan" in done.stderr
