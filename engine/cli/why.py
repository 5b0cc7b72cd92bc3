"""Implement `kubengine why`: explain why a pod was evicted, preempted, refused or restarted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.cli.agent.client import AgentClient, agent_option, print_json

if TYPE_CHECKING:
    from engine.record.blocks import RecordRow

NOTHING = 3


@click.command()
@click.argument("pod", metavar="POD")
@click.option(
    "--record",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read this record, also of pods that are gone, instead of asking the agent.",
)
@click.option("--all", "everything", is_flag=True, help="Print all entries about the pod, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@agent_option
def command(agent: AgentClient, pod: str, directory: Path | None, everything: bool, as_json: bool) -> None:
    """Explain why POD (namespace/name, a name in `default`, or a uid) was evicted, preempted, refused or
    restarted: the decision, its reason and what it examined.

    Exit status: 0 if something was decided about the pod, 3 if nothing is known.
    """
    from engine.record.reader import Record
    from engine.record.why import causes, inputs_in_words, is_about

    record = Record(directory) if directory is not None else None
    rows = (
        list(record.rows(lambda row: is_about(pod, row)))
        if record is not None
        else list(_of_agent(agent, pod))
    )
    gaps = record.gaps if record is not None else []
    found = list(causes(rows))
    if as_json:
        print_json(
            {
                "pod": pod,
                "causes": [cause.as_dict() for cause in found],
                "rows": [_plain(row) for row in rows] if everything else [],
                "gaps": gaps,
            }
        )
    else:
        for cause in found:
            click.echo(cause.sentence)
            for line in inputs_in_words(cause.inputs):
                click.echo(f"    {line}")
        if everything:
            _print_rows(rows)
        if not rows:
            click.echo(f"nothing is known about pod {pod}")
        elif not found:
            click.echo(f"pod {pod} was not evicted, preempted, refused or restarted ({len(rows)} entries)")
        for gap in gaps:
            click.echo(f"the record has a gap: {gap}", err=True)
    if not rows:
        raise click.exceptions.Exit(NOTHING)


def _of_agent(agent: AgentClient, pod: str) -> Iterator[RecordRow]:
    from engine.record.blocks import RecordRow

    for one in agent.get_json("/kubengine/decisions", pod=pod)["decisions"]:
        yield RecordRow(
            time=one["time"],
            stream="decision",
            name=f"{one['kind']} {one['outcome']}",
            text=one.get("reason", ""),
            pod=one.get("pod", ""),
            uid=one.get("uid", ""),
            container=one.get("container", ""),
            inputs=one.get("inputs", {}),
        )


def _print_rows(rows: list[RecordRow]) -> None:
    from engine.record.reader import moment

    click.echo("everything:")
    for row in rows:
        whose = f" {row.container}" if row.container else ""
        click.echo(
            f"  {moment(row.time)} {row.stream}{whose} {row.name}" + (f": {row.text}" if row.text else "")
        )


def _plain(row: RecordRow) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(row)
    return plain
