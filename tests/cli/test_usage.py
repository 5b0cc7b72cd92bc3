"""What every command owes its users: exit status, quiet pipes, suggestions, one option for JSON."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from engine.cli import COMMANDS
from engine.cli.output.console import table_console

CLI = [sys.executable, "-m", "engine.cli"]


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *arguments], capture_output=True, text=True, check=False, timeout=240)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stauts"], "did you mean status?"),
        (["plan", "premept"], "did you mean preempt?"),
        (["xyzzy"], "No such command 'xyzzy'"),
        (["bench", "node", "--kubelet", "/bin/true", "--phases", "foo"], "--phases: expected some of"),
        (["device-plugin", "--resource", "foo"], "the ResourceName 'foo' is invalid"),
        (["device-plugin", "--resource", "kubernetes.io/foo"], "is invalid"),
        (["plan", "synth", "--nodes", "-5"], "--nodes"),
        (["preempt", "--requests", "cpu"], "--requests: expected KEY=VALUE"),
        (["plan", "preempt", "--json", "--format", "csv", "--requests", "cpu=1", "SNAPSHOT"], "contradicts"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_exits_with_status_2_and_the_reason(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    if "SNAPSHOT" in arguments:
        snapshot = tmp_path / "s.kes"
        assert ended("plan", "synth", "--nodes", "2", "-o", str(snapshot)).returncode == 0
        arguments = [str(snapshot) if each == "SNAPSHOT" else each for each in arguments]
    done = ended(*arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr


def test_a_plugin_with_a_wrong_name_makes_no_directory(tmp_path: Path) -> None:
    directory = tmp_path / "plugins"
    assert ended("device-plugin", "--resource", "foo", "--plugin-dir", str(directory)).returncode == 2
    assert not directory.exists()


@pytest.mark.parametrize(
    "arguments",
    [["plan", "synth", "--json"], ["plan", "schema"], ["--help"], ["plan", "--help"]],
    ids=" ".join,
)
def test_a_reader_that_stops_ends_a_command_quietly(arguments: list[str]) -> None:
    with subprocess.Popen([*CLI, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        said = command.stderr.read()
        assert command.wait(240) == 141
    assert said == b""


def test_a_table_into_a_closed_pipe_is_no_failure_of_ours() -> None:
    console = table_console()
    with pytest.raises(BrokenPipeError):
        console.on_broken_pipe()


def every_command() -> Iterator[tuple[str, click.Command]]:
    waiting = [
        (name, import_module(f"engine.cli.{name.replace('-', '_')}").command) for name in sorted(COMMANDS)
    ]
    while waiting:
        path, command = waiting.pop()
        yield path, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                waiting.append((f"{path} {name}", below))


def test_every_command_spells_json_output_alike() -> None:
    """`--json`; older spellings are taken and not shown."""
    for path, command in every_command():
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                choices = getattr(option.type, "choices", ())
                assert "json" not in choices or "json" not in (option.metavar or "json"), path
    for path in ("decisions", "plan preempt", "plan synth", "plan run", "status", "images", "eviction"):
        command = dict(every_command())[path]
        assert "--json" in [name for option in command.params for name in option.opts], path


def test_the_older_spellings_of_json_still_work() -> None:
    printed = [
        ended("plan", "synth", "--nodes", "2", *option).stdout
        for option in (["--json"], ["--format", "json"])
    ]
    assert printed[0] == printed[1]
    assert printed[0].startswith("{")
