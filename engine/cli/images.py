"""Implement `kubengine images`: show the runtime's images, their users, and what garbage collection would
remove.
"""

from __future__ import annotations

from typing import Any

import click

from engine.api.encoding.counts import counted
from engine.cli.agent.client import AgentClient, agent_option, json_option, print_json
from engine.cli.output.amounts import show_age, show_bytes

GC_DEADLINE = 600.0


@click.group(invoke_without_command=True)
@json_option
@agent_option
@click.pass_context
def command(context: click.Context, agent: AgentClient, as_json: bool) -> None:
    """Show images with their size, last use, users and what protects them; `gc` collects."""
    if context.invoked_subcommand is not None:
        return
    answer = agent.describe("images")
    if as_json:
        print_json(answer)
        return
    from rich.table import Table

    table = Table("Image", "Size", "Seen", "Last used", "In use by", "Stays because", box=None)
    now = answer["now"]
    # In the order of collection by age: images that were never used go first.
    for image in sorted(answer["images"], key=lambda image: (image["lastUsed"] or 0, image["firstDetected"])):
        used = "never seen" if image["lastUsed"] is None else f"{show_age(now - image['lastUsed'])} ago"
        table.add_row(
            _name(image["names"], image["id"]),
            show_bytes(image["size"]),
            f"{show_age(now - image['firstDetected'])} ago",
            used,
            _users(image["inUseBy"]),
            image["protected"] or "-",
        )
    _console().print(table)
    total, count = sum(image["size"] for image in answer["images"]), len(answer["images"])
    size = f", {show_bytes(total)}" if total else ""
    click.echo(
        f"{counted(count, 'image')}{size}; collected from "
        f"{answer['highThresholdPercent']} % of the disk down to {answer['lowThresholdPercent']} %, "
        f"order {answer['order']}"
    )


@command.command()
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and why the rest stays.")
@click.option("--all-unused", is_flag=True, help="Everything unused, whatever the thresholds.")
@json_option
@agent_option
def gc(agent: AgentClient, dry_run: bool, all_unused: bool, as_json: bool) -> None:
    """Collect images now, by the agent's own policy."""
    agent.timeout = GC_DEADLINE
    action = "delete-unused" if all_unused else "gc"
    report = agent.act("images", action, **({"dry-run": "true"} if dry_run else {}))
    if as_json:
        print_json(report)
    else:
        _show(report)
    if report["error"]:
        raise click.ClickException(report["error"])


def _show(report: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("Image", "Size", "Verdict", "Because", box=None)
    for image in report["images"]:
        table.add_row(
            _name(image["names"], image["key"]), show_bytes(image["size"]), image["verdict"], image["reason"]
        )
    _console().print(table)
    if report["capacity"]:
        used = 100 - report["available"] * 100 // report["capacity"]
        click.echo(f"the image file system was {used} % full", nl=False)
        if report["wanted"] is None:
            click.echo(", below the high threshold: nothing to free for space")
        else:
            click.echo(f", to free: {show_bytes(report['wanted'])}")
    freed = report["freed"] + report["freed_by_age"]
    click.echo(f"{'would free' if report['dry_run'] else 'freed'} {show_bytes(freed)}")
    for holder, amount in report["elsewhere"].items():
        click.echo(f"  {show_bytes(amount):>9}  {holder}")


def _name(names: list[str], id: str) -> str:
    return names[0] if names else id[:19]


def _users(users: list[str]) -> str:
    distinct = list(dict.fromkeys(users))
    return ", ".join(distinct[:2]) + (f" and {len(distinct) - 2} more" if len(distinct) > 2 else "") or "-"


def _console() -> Any:
    from engine.cli.output.console import table_console

    return table_console(200)
