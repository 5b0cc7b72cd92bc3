"""Implement `kubengine takeover --check`: say what a take-over of this node would do, before anything is
touched.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from engine.cli.agent.client import print_json
from engine.cli.agent.kubelet_options import kubelet_options

if TYPE_CHECKING:
    from engine.shadow.takeover_survey import TakeoverSurvey
    from engine.shadow.watch import ShadowOptions

CHANGES = 3


@click.command()
@click.option("--check", is_flag=True, help="Only say what would happen; nothing is touched.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@kubelet_options
def command(check: bool, as_json: bool, options: ShadowOptions) -> None:
    """Show for each pod of a kubelet's node what happens to it if this agent takes the node over now: kept,
    restarted, moved to other CPUs or refused, what it holds, and what happens on the way back.

    Exit status: 0 every pod is kept, 3 some is not, or something has to be dealt with before.
    """
    from engine.shadow.takeover_survey import survey
    from engine.shadow.watch import Shadow

    if not check:
        raise click.UsageError(
            "say --check; to take the node over, stop the kubelet and start `kubengine kubelet`"
        )

    async def read() -> TakeoverSurvey:
        shadow = Shadow(options)
        try:
            return await survey(shadow)
        finally:
            await shadow.close()

    found = asyncio.run(read())
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found)
    if found.changes:
        raise click.exceptions.Exit(CHANGES)


def _print(found: TakeoverSurvey) -> None:
    from rich.table import Table

    from engine.cli.output.console import table_console
    from engine.shadow.takeover import summary

    console = table_console()
    table = Table("Pod", "Fate", "Why", "Holds", "Way back", box=None, pad_edge=False)
    for one in found.fates:
        table.add_row(one.pod, one.fate, one.why, "\n".join(one.holds), one.back)
    console.print(table)
    for finding in found.findings:
        label = "before: " if finding.stops else ""
        click.echo(f"{label}{finding.subject}: {finding.text}")
    counts = ", ".join(f"{count} {fate}" for fate, count in summary(found.fates).items() if count)
    click.echo(f"node {found.node}: {counts or 'no pods'}")
