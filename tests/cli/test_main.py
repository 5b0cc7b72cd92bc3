"""The command itself: help without imports, errors in one line, exit statuses, completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cli import COMMANDS
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
HEAVY = {"grpc", "numpy", "rich", "google", "pyroute2", "yaml", "msgspec", "pyarrow"}


def kubengine(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "engine.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_help_lists_every_command_and_exit_statuses() -> None:
    run = kubengine("--help")
    assert run.returncode == 0
    for name, line in COMMANDS.items():
        assert f"  {name} " in run.stdout
        assert line.split()[0] in run.stdout
    assert "Exit status" in run.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name: str) -> None:
    run = kubengine(name, "--help")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"Usage: kubengine {name}")
    assert len(run.stdout.split("\n\n")[1].split()) > 4, "a sentence about what it does"


def test_every_command_file_is_registered() -> None:
    files = (ROOT / "engine/cli").glob("[!_]*.py")
    commands = {path.stem.replace("_", "-") for path in files if "\ndef command(" in path.read_text()}
    assert commands == set(COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from engine.cli import main\n"
        "sys.argv = ['kubengine', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit:\n    sys.stderr.write(' '.join({m.split('.')[0] for m in sys.modules}))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not HEAVY & set(run.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["status", "--colour"], 2, "No such option"),
        (
            ["status", "--agent", "/nowhere.sock"],
            1,
            "no agent answers: tried /nowhere.sock (No such file or directory)",
        ),
        (["status", "--agent", "http://127.0.0.1:1"], 1, "Connection refused"),
        (["run", "--config", "/nowhere"], 2, "does not exist"),
    ],
    ids=["command", "option", "no-agent", "no-port", "no-file"],
)
def test_mistakes_are_one_message_and_a_status(arguments: list[str], status: int, words: str) -> None:
    run = kubengine(*arguments)
    assert run.returncode == status
    assert words in run.stderr
    assert "Traceback" not in run.stderr


def test_a_missing_planner_library_names_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    run = kubengine("plan", "preempt", PYTHONPATH=str(tmp_path))
    assert run.returncode == 1
    assert run.stderr == (
        "Error: plan needs pyarrow, which is not installed: pip install 'kubengine[plan]' "
        "(Debian: apt install kubengine-plan)\n"
    )


def test_debug_shows_where() -> None:
    assert "Traceback" in kubengine("--debug", "status", "--agent", "/nowhere.sock").stderr


def test_the_agents_address_comes_from_the_environment() -> None:
    assert "/from/env.sock" in kubengine("status", KUBENGINE_AGENT="/from/env.sock").stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    script = kubengine("completion", shell).stdout
    assert "_KUBENGINE_COMPLETE" in script
    words = kubengine(
        _KUBENGINE_COMPLETE=f"{shell}_complete",
        COMP_WORDS="kubengine sta",
        COMP_CWORD="sta" if shell == "fish" else "1",
    ).stdout
    assert "status" in words
