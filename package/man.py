"""Write a man page for each command from its help: `man.py DIRECTORY` writes kubengine.1 and the others."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from engine.api.version import engine_version
from engine.cli import COMMANDS, _kubengine


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and text of each page, the page of `kubengine` first."""
    waiting: list[tuple[click.Command, click.Context]] = [
        (_kubengine, click.Context(_kubengine, info_name="kubengine"))
    ]
    while waiting:
        command, context = waiting.pop(0)
        below = _below(command, context)
        yield context.command_path.replace(" ", "-"), _page(command, context, below)
        waiting += [(one, click.Context(one, parent=context, info_name=name)) for name, one in below.items()]


def _below(command: click.Command, context: click.Context) -> dict[str, click.Command]:
    if not isinstance(command, click.Group):
        return {}
    found = {name: command.get_command(context, name) for name in command.list_commands(context)}
    return {name: one for name, one in found.items() if one is not None}


def _page(command: click.Command, context: click.Context, below: dict[str, click.Command]) -> str:
    name = context.command_path.replace(" ", "-")
    first, *rest = inspect.cleandoc(command.help or "").replace("\b\n", "").split("\n\n")
    usage = " ".join(command.collect_usage_pieces(context))
    options = [
        record
        for param in command.get_params(context)
        if isinstance(param, click.Option) and (record := param.get_help_record(context))
    ]
    lines = [
        f'.TH {_text(name.upper())} 1 "" "kubengine {engine_version()}" "Kubengine"',
        ".SH NAME",
        f"{_text(name)} \\- {_text(' '.join(first.split()))}",
        ".SH SYNOPSIS",
        f".B {_text(context.command_path)}",
        _text(usage),
        ".SH DESCRIPTION",
    ]
    for paragraph in (first, *rest):
        lines += [".PP", _text(" ".join(paragraph.split()))]
    if options:
        lines.append(".SH OPTIONS")
        for declaration, meaning in options:
            lines += [".TP", f".B {_text(declaration)}", _text(" ".join(meaning.split()))]
    if below:
        lines.append(".SH COMMANDS")
        for word, one in below.items():
            meaning = COMMANDS[word] if command is _kubengine else one.get_short_help_str(200)
            lines += [".TP", f".BR {_text(name)}\\-{_text(word)} (1)", _text(meaning)]
    if context.parent is not None:
        lines += [".SH SEE ALSO", f".BR {_text(context.parent.command_path.replace(' ', '-'))} (1)"]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """Escape text for roff: double its escapes, keep hyphens, and let no line begin a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (directory / f"{name}.1").write_text(text)


if __name__ == "__main__":
    main()
