"""Suggest the nearest name for a command that does not exist."""

from __future__ import annotations

import click

from engine.api.documents.nearest import nearest


def check_command(group: click.Group, context: click.Context, arguments: list[str]) -> None:
    """Fail with the nearest name if the first argument is not a command of the group."""
    name = arguments[0]
    commands = group.list_commands(context)
    if name not in commands and not name.startswith("-") and not context.resilient_parsing:
        context.fail(f"No such command {name!r}{nearest(name, commands)}")
