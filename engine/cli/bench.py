"""Implement `kubengine bench`: measure the node under load, against a kubelet or at growing density, and
compare test suite results.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from engine.cli.agent.client import json_option, print_json

if TYPE_CHECKING:
    from engine.bench.node import NodeBenchResult


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
@click.option(
    "--probe-mix",
    metavar="KIND=WEIGHT,…",
    default="http=1,tcp=1",
    show_default=True,
    help="Kinds of probes in the probing phase: http, tcp, exec.",
)
@click.option(
    "--probes-per-second",
    type=click.FloatRange(0, min_open=True),
    metavar="RATE",
    help="Probes a second of all pods together; at most, and by default, two for each pod.",
)
@click.option(
    "--images",
    type=click.IntRange(1, 100_000),
    default=500,
    show_default=True,
    help="Unused images that the image-gc phase collects.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Administrator's kubeconfig of the cluster that the api phase joins as node bench-node.",
)
@click.option("--runtime", metavar="hollow|unix:///PATH", default="hollow", show_default=True)
@click.option("--phases", metavar="NAME,…", help="Only these phases.  [default: all]")
@click.option(
    "--limit",
    type=click.FloatRange(1),
    default=300.0,
    show_default=True,
    help="Longest wait for a phase, in seconds.",
)
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a report with plots here."
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write JSON here.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown, as in docs/density.md.")
@click.option(
    "--compare",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Compare with an earlier run: the file that --output wrote.",
)
def node(
    kubelet: Path | None,
    pods: int,
    repetitions: int,
    seconds: float,
    probe_mix: str,
    probes_per_second: float | None,
    images: int,
    kubeconfig: Path | None,
    runtime: str,
    phases: str | None,
    limit: float,
    html: Path | None,
    output: Path | None,
    markdown: bool,
    compare: Path | None,
) -> None:
    """Run this engine, and a kubelet if given, through the same phases in turn.

    Both get the same configuration, manifests and kind of runtime. Ctrl-C ends the run, cleans up and shows
    what was measured. With --compare, a change counts as better or worse only if the ranges of the
    repetitions do not meet.
    """
    from engine.bench import BenchOptions, NodeBench
    from engine.bench.comparison import read_result
    from engine.bench.node import PHASES
    from engine.bench.probe_load import ProbeLoad
    from engine.bench.report import html_report, json_report

    earlier = read_result(compare) if compare is not None else None
    chosen = tuple(phases.split(",")) if phases else tuple(PHASES)
    bench = NodeBench(
        BenchOptions(
            kubelet,
            pods,
            repetitions,
            seconds,
            runtime,
            chosen,
            limit,
            ProbeLoad.parse(probe_mix, probes_per_second),
            images,
            kubeconfig,
        ),
        lambda line: click.echo(line, err=True),
    )
    # As Ctrl-C, whose clean-up removes the bench's cgroups and processes and shows what was measured.
    signal.signal(signal.SIGTERM, _end_on_terminate)
    try:
        bench.run()
    finally:
        written = _show(bench.result, markdown, {output: json_report, html: html_report})
        if earlier is not None and bench.result.runs:
            _compare(earlier, bench.result, markdown)
    if not written:
        raise click.exceptions.Exit(1)


def _show(
    result: NodeBenchResult, markdown: bool, reports: Mapping[Path | None, Callable[[NodeBenchResult], str]]
) -> bool:
    """Print the table and write the files, even of an incomplete run. Return False if a file
    cannot be written.
    """
    from engine.bench.report import markdown_table, ratio_table
    from engine.cli.output.console import table_console

    if result.runs:
        if not result.complete:
            click.echo("interrupted; measured so far:", err=True)
        if markdown:
            click.echo(markdown_table(result))
        else:
            table_console().print(ratio_table(result))
    written = True
    for path, text in reports.items():
        if path is None:
            continue
        try:
            path.write_text(text(result))
        except OSError as error:
            written = False
            # Half a report would be taken for a whole one; a device or a pipe stays.
            if path.is_file():
                path.unlink()
            click.echo(f"{path}: not written: {error.strerror}", err=True)
    return written


def _compare(earlier: NodeBenchResult, now: NodeBenchResult, markdown: bool) -> None:
    """Print the run next to an earlier one, and what else differs between them."""
    from engine.bench.comparison import comparison_markdown, comparison_table, different_conditions
    from engine.cli.output.console import table_console

    for difference in different_conditions(earlier, now):
        click.echo(f"not measured under the same conditions: {difference}", err=True)
    click.echo()
    if markdown:
        click.echo(comparison_markdown(earlier, now))
    else:
        table_console().print(comparison_table(earlier, now))


@command.command()
@click.option("--pods", metavar="N,…", default="110,500,1000,2500", show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    help="Seconds for which each is measured.",
)
@click.option(
    "--limit",
    type=click.FloatRange(1),
    default=900.0,
    show_default=True,
    help="Longest wait for a phase, in seconds.",
)
@json_option
def scale(pods: str, seconds: float, limit: float, as_json: bool) -> None:
    """Run this engine on the hollow runtime at growing numbers of pods.

    Two containers a pod, one HTTP probe of 10 s. The table is Markdown, as in docs/density.md.
    """
    from dataclasses import asdict

    from engine.bench import ScaleOptions, run_scale
    from engine.bench.report import scale_table

    try:
        sizes = tuple(int(size) for size in pods.split(","))
    except ValueError:
        raise click.BadParameter("expected numbers with commas", param_hint="--pods") from None
    signal.signal(signal.SIGTERM, _end_on_terminate)
    rows = run_scale(ScaleOptions(sizes, seconds, limit), lambda line: click.echo(line, err=True))
    if as_json:
        print_json([asdict(row) for row in rows])
    elif rows:
        click.echo(scale_table(rows))
    if len(rows) < len(sizes):
        raise click.exceptions.Exit(1)


_REPORTS = click.Path(path_type=Path, exists=True, dir_okay=False)


@command.command()
@click.option("--kubelet", type=_REPORTS, multiple=True, help="A JUnit report of a run with the kubelet.")
@click.option(
    "--kubengine", type=_REPORTS, multiple=True, required=True, help="A JUnit report of a run with kubengine."
)
@click.option(
    "--conformance",
    is_flag=True,
    help="Count the specs marked [Conformance] by SIG; reports with the kubelet are optional.",
)
@click.option(
    "--into",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Write the tables between the marks of this document.  [default: print them]",
)
def suite(
    kubelet: tuple[Path, ...], kubengine: tuple[Path, ...], conformance: bool, into: Path | None
) -> None:
    """Compare two agents by Kubernetes' own test suites, spec by spec.

    Reads Ginkgo's JUnit reports; docs/compatibility.md and docs/conformance.md describe how to produce them.
    Both options of reports may be given several times: for each spec, the last report in which it ran counts.
    """
    from engine.bench.compatibility import tables, write_into
    from engine.bench.conformance import conformance_tables
    from engine.bench.suite import read_reports

    if not kubelet and not conformance:
        raise click.UsageError("Missing option '--kubelet', a report to compare with.")
    theirs, ours = read_reports(kubelet), read_reports(kubengine)
    text = conformance_tables(ours, theirs) if conformance else tables(theirs, ours)
    if into is None:
        click.echo(text, nl=False)
    else:
        write_into(into, text)


_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def _pairs(_context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Split NAME=VALUE at the first `=`."""
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise click.BadParameter("expected NAME=VALUE", param=option)
    return {name: value for name, _, value in pairs}


@command.command()
@click.argument("workload", type=_FILE)
@click.option("--kubeconfig", type=_FILE, required=True, help="Administrator's kubeconfig of the cluster.")
@click.option("--agent-pid", type=click.IntRange(1), required=True, help="Process of the agent to measure.")
@click.option(
    "--agent", metavar="NAME", default="kubengine", show_default=True, help="Name of the agent in the table."
)
@click.option(
    "--var",
    "variables",
    metavar="NAME=YAML",
    multiple=True,
    callback=_pairs,
    help="A variable of the workload file, such as JOB_ITERATIONS=250.",
)
@click.option(
    "--image",
    "images",
    metavar="NAME=NAME",
    multiple=True,
    callback=_pairs,
    help="Use the second image in place of the first.",
)
@click.option(
    "--seconds", type=click.FloatRange(1), default=30.0, show_default=True, help="Length of the idle phase."
)
@click.option(
    "--limit",
    type=click.FloatRange(1),
    default=900.0,
    show_default=True,
    help="Longest wait for a phase, in seconds.",
)
@json_option
def density(
    workload: Path,
    kubeconfig: Path,
    agent_pid: int,
    agent: str,
    variables: dict[str, str],
    images: dict[str, str],
    seconds: float,
    limit: float,
    as_json: bool,
) -> None:
    """Play a kube-burner workload file on a cluster and measure a node's agent.

    The table has the time from creation to Ready of its pods, and the agent's processor time and memory.
    """
    from dataclasses import asdict

    from engine.bench.burner_jobs import variable
    from engine.bench.density import DensityOptions, density_table, run_density

    given = {name: variable(value) for name, value in variables.items()}
    signal.signal(signal.SIGTERM, _end_on_terminate)
    rows = run_density(
        DensityOptions(workload, kubeconfig, agent_pid, agent, given, images, seconds, limit),
        lambda line: click.echo(line, err=True),
    )
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        click.echo(density_table(rows))
