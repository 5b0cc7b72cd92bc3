"""`kubengine bench`: the node under load, beside a kubelet or at growing density."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import click

from engine.cli._agent import json_option, print_json


@click.group(invoke_without_command=False)
def command() -> None:
    """Measure a node agent from outside, on private directories, ports and cgroups."""


def _end_on_terminate(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@command.command()
@click.option(
    "--kubelet", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="A kubelet, 1.28 to 1.36."
)
@click.option("--pods", type=click.IntRange(1, 10_000), default=60, show_default=True)
@click.option("--repetitions", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(1), default=20.0, show_default=True, help="Length of steady phases."
)
@click.option("--runtime", metavar="hollow|unix:///PATH", default="hollow", show_default=True)
@click.option("--phases", metavar="NAME,…", help="Only these phases.  [default: all]")
@click.option(
    "--limit", type=click.FloatRange(1), default=300.0, show_default=True, help="Longest wait, in seconds."
)
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a report with plots here."
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write JSON here.")
def node(
    kubelet: Path | None,
    pods: int,
    repetitions: int,
    seconds: float,
    runtime: str,
    phases: str | None,
    limit: float,
    html: Path | None,
    output: Path | None,
) -> None:
    """Run this engine, and a kubelet if given, through the same phases in turn.

    Both get the same configuration, manifests and kind of runtime. Ctrl-C ends the run, cleans up and shows
    what was measured.
    """
    from rich.console import Console

    from engine.bench import BenchOptions, NodeBench
    from engine.bench.node import PHASES
    from engine.bench.report import html_report, json_report, ratio_table

    chosen = tuple(phases.split(",")) if phases else tuple(PHASES)
    bench = NodeBench(
        BenchOptions(kubelet, pods, repetitions, seconds, runtime, chosen, limit),
        lambda line: click.echo(line, err=True),
    )
    signal.signal(signal.SIGTERM, _end_on_terminate)
    try:
        bench.run()
    finally:
        console = Console()
        if bench.result.runs:
            if not bench.result.complete:
                click.echo("interrupted; measured so far:", err=True)
            (console if console.is_terminal else Console(width=160)).print(ratio_table(bench.result))
        for path, text in ((output, json_report), (html, html_report)):
            if path is not None:
                path.write_text(text(bench.result))


@command.command()
@click.option("--pods", metavar="N,…", default="110,500,1000,2500", show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="How long each is watched."
)
@click.option(
    "--limit", type=click.FloatRange(1), default=900.0, show_default=True, help="Longest wait, in seconds."
)
@json_option
def scale(pods: str, seconds: float, limit: float, as_json: bool) -> None:
    """Run this engine on the hollow runtime at growing numbers of pods.

    Two containers a pod, one HTTP probe of 10 s. The table is Markdown, as in docs/density.md.
    """
    from dataclasses import asdict

    from engine.bench import ScaleOptions, run_scale

    try:
        sizes = tuple(int(size) for size in pods.split(","))
    except ValueError:
        raise click.BadParameter("expected numbers with commas", param_hint="--pods") from None
    signal.signal(signal.SIGTERM, _end_on_terminate)
    rows = [
        asdict(row)
        for row in run_scale(ScaleOptions(sizes, seconds, limit), lambda line: click.echo(line, err=True))
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        raise click.ClickException("nothing was measured")
    names = list(rows[0])
    click.echo(f"| {' | '.join(names)} |\n|{'---:|' * len(names)}")
    for row in rows:
        click.echo(f"| {' | '.join(f'{value:.4g}' for value in row.values())} |")
