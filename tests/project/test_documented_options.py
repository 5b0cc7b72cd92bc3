"""The subcommands and options that the documents name are those of the commands' own help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from engine.cli import _kubengine
from engine.cli.agent.kubelet_flags import FIELDS, NOT_NEEDED, WITHOUT_EFFECT

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
IDS = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*|-[a-zA-Z])(?![\w-])")


def command_lines(text: str) -> Iterator[str]:
    """Yield the arguments of `kubengine` in code spans and on lines of blocks, up to a pipe or a comment."""
    text = re.sub(r"\\\n\s*", " ", text)
    for found in re.findall(r"(?:^ {4,}|^|`|\$ |/|sudo |\| )kubengine ([^`\n]+)", text, re.MULTILINE):
        yield re.split(r" \| | #| > |  ", found)[0]


def options(command: click.Command) -> set[str]:
    params = command.get_params(click.Context(command))
    return {"-h"} | {name for param in params for name in (*param.opts, *param.secondary_opts)}


def takes_a_value(command: click.Command, word: str) -> bool:
    params = command.get_params(click.Context(command))
    return any(word in p.opts and not getattr(p, "is_flag", False) for p in params)


def called(line: str) -> tuple[list[str], set[str]]:
    """Return the path of commands on a line, and every option that these commands accept."""
    command: click.Command = _kubengine
    path, known = [], options(command)
    words = iter(line.split())
    for word in words:
        if not isinstance(command, click.Group):
            break
        if takes_a_value(command, word):
            next(words, "")
            continue
        below = command.get_command(click.Context(command), word)
        if below is not None:
            command = below
            path.append(word)
            known |= options(command)
        elif path and re.fullmatch(r"[a-z][a-z-]+", word):
            raise AssertionError(f"kubengine {' '.join(path)} has no command {word}: kubengine {line}")
    return path, known


def every_option() -> set[str]:
    known = {
        f"--{flag}" for flag in (*FIELDS, *NOT_NEEDED, *WITHOUT_EFFECT)
    }  # what `kubengine kubelet` takes beside its own
    waiting: list[click.Command] = [_kubengine]
    while waiting:
        command = waiting.pop()
        known |= options(command)
        if isinstance(command, click.Group):
            context = click.Context(command)
            below = (command.get_command(context, name) for name in command.list_commands(context))
            waiting += [one for one in below if one is not None]
    return known


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_options_on_command_lines_are_the_commands_own(document: Path) -> None:
    for line in command_lines(document.read_text()):
        path, known = called(line)
        unknown = {name for name in _OPTION.findall(line) if name not in known}
        assert not unknown, f"kubengine {' '.join(path)} has no {unknown}: kubengine {line}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=IDS)
def test_options_named_alone_exist_somewhere(document: Path) -> None:
    known = every_option()
    spans = re.findall(r"`(--[a-z][^`\n]*)`", document.read_text())
    unknown = {name for span in spans for name in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", span)} - known
    assert not unknown


def test_a_wrong_option_on_a_line_is_seen() -> None:
    _, known = called("plan evict --resource memory cluster.kes")
    assert "--resource" in known
    assert "--only-labels" not in known
    with pytest.raises(AssertionError, match="no command evicted"):
        called("plan evicted cluster.kes")
