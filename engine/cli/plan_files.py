"""Implement `kubengine plan snapshot`, `synth` and `place`: make and convert snapshots."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.cli.plan import opened, source_options
from engine.host.files import replace_file, replacing_file
from engine.plan.placement.place import place as place_pods
from engine.plan.reading.mapping import load_mapped
from engine.plan.snapshot.columnar_file import SUFFIX, write_snapshot, write_stream
from engine.plan.snapshot.columns import Snapshot
from engine.plan.synth.cluster import synthesize

RULES = ("spread", "pack")


def deliver(snapshot: Snapshot, output: str, format: str | None) -> None:
    """Write a snapshot to a file or a pipe, columnar or as JSON."""
    chosen = format or ("json" if output.endswith(".json") else "columnar")
    if not output and sys.stdout.isatty() and chosen == "columnar":
        raise InvalidInput(
            f"a columnar snapshot is not for a terminal; give -o FILE{SUFFIX} or a pipe", subject="-o"
        )
    if chosen == "json":
        from engine.plan.snapshot.json_writer import write_list

        if output:
            with replacing_file(Path(output)) as file:
                write_list(snapshot, file)
        else:
            write_list(snapshot, sys.stdout.buffer)
    elif output:
        write_snapshot(snapshot, Path(output))
    else:
        write_stream(snapshot, sys.stdout.buffer)
    sys.stdout.flush()
    click.echo(f"{snapshot.node_count:,} nodes, {snapshot.placed:,} pods on them", err=True)


def output_options(function: Any) -> Any:
    for option in (
        click.option("--format", "format_", type=click.Choice(["columnar", "json"]), hidden=True),
        click.option("--json", "format_", flag_value="json", help="Kubernetes JSON, not a columnar file."),
        click.option("-o", "--output", default="", help=f"File ({SUFFIX} or .json); else a pipe."),
    ):
        function = option(function)
    return function


@click.command()
@click.option("--mapping", default="", help="Mapping file: nodes and pods come from CSV or Parquet.")
@click.option("--nodes", default="", help="Instead of the mapping's node file.")
@click.option("--pods", default="", help="Instead of the mapping's pod file.")
@click.option(
    "--place",
    "rule",
    type=click.Choice(RULES),
    default=None,
    help="Place pods without a node, in order of time.",
)
@click.option(
    "--anonymize",
    default="",
    metavar="TABLE",
    help="Replace names, labels and images, and write the original of each to this JSON file.",
)
@output_options
@source_options
def snapshot(
    mapping: str,
    nodes: str,
    pods: str,
    rule: Any,
    anonymize: str,
    output: str,
    format_: str | None,
    **options: Any,
) -> None:
    """Convert to a columnar snapshot, which loads many times faster than JSON.

    With --kubeconfig or --context, take it of a running cluster. With --anonymize, structure and numbers
    stay, so the answers to questions stay the same, and the names stay with you.
    """
    if mapping:
        loaded, odd = load_mapped(Path(mapping), nodes, pods)
        for line in odd:
            click.echo(f"note: {line}", err=True)
    else:
        loaded = opened(options).whole
    if rule:
        loaded, missed = place_pods(loaded, rule=rule)
        click.echo(f"{missed:,} pods fit nowhere", err=True)
    if anonymize:
        loaded = _anonymous(loaded, Path(anonymize))
    deliver(loaded, output, format_)


def _anonymous(loaded: Snapshot, table: Path) -> Snapshot:
    from engine.plan.anonymize.anonymous import anonymous

    if table.suffix != ".json":
        raise InvalidInput("name the file for the table of names: names.json", subject="--anonymize")
    made, names = anonymous(loaded)
    replace_file(table, msgspec.json.format(encode_json(names), indent=2).decode() + "\n", mode=0o600)
    return made


@click.command()
@click.option("--nodes", type=click.IntRange(1), default=100, show_default=True)
@click.option("--pods-per-node", type=click.IntRange(0), default=100, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@output_options
def synth(nodes: int, pods_per_node: int, seed: int, output: str, format_: str | None) -> None:
    """Make up a cluster with realistic distributions; the same seed gives the same cluster."""
    deliver(synthesize(nodes, pods_per_node, seed), output, format_)


@click.command()
@click.option("--rule", type=click.Choice(RULES), default="spread", show_default=True)
@click.option("--order", type=click.Choice(["time", "size"]), default="time", show_default=True)
@output_options
@source_options
def place(rule: Any, order: Any, output: str, format_: str | None, **options: Any) -> None:
    """Assign a node to each pod without one, by its requests alone."""
    placed, missed = place_pods(opened(options).whole, rule=rule, order=order)
    click.echo(f"{missed:,} pods fit nowhere", err=True)
    deliver(placed, output, format_)


COMMANDS: dict[str, click.Command] = {"snapshot": snapshot, "synth": synth, "place": place}
