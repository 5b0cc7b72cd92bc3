"""Implement `kubengine plan`: what-ifs over a cluster snapshot. Its subcommands are built from
`engine.plan.questions`.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from engine.api.encoding.counts import counted
from engine.api.errors import InvalidInput
from engine.cli import KUBECTL
from engine.cli.output.console import table_console
from engine.cli.output.suggestions import check_command
from engine.cli.plan_options import options_named, parameter_options, parameters_from
from engine.plan.answers.answer import Answer
from engine.plan.answers.explain import explain
from engine.plan.answers.output import FORMATS, WIDTH, format_for, provenance, write_answer
from engine.plan.answers.readable import printable
from engine.plan.cluster import Cluster, NodeSelection, ask
from engine.plan.questions import QUESTIONS
from engine.plan.reading.progress import Step, progress
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.faults import FaultLog

SNAPSHOT_HELP = (
    "JSON from kubectl (List, NDJSON, .gz, tar or folder), a columnar snapshot, http://NODE:PORT, "
    "the socket of an agent, or -. Or --kubeconfig or --context for a running cluster."
)


def source_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name the cluster's source."""
    for option in (
        click.option("--strict", is_flag=True, help="Refuse a snapshot with a fault instead of counting it."),
        click.option("--quiet", is_flag=True, help="No progress bar and no list of faults."),
        click.option(
            "--kubeconfig", default="", metavar="FILE", help="Ask the running cluster of this file."
        ),
        click.option(
            "--context", default="", metavar="NAME", help="Ask the running cluster of this context."
        ),
        click.option(
            "--node-documents/--no-node-documents",
            default=True,
            help="Whether to read configuration and statistics of a running cluster's nodes.",
        ),
        click.argument("snapshot", nargs=-1),
    ):
        function = option(function)
    return function


def answer_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that control where the answer goes."""
    for option in reversed(
        (
            click.option("-o", "--output", default="", help="File; its suffix gives the format."),
            click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table."),
            click.option(
                "--format",
                "format_",
                type=click.Choice(FORMATS),
                metavar="[table|csv|parquet|html]",
                default=None,
                help="Format of the answer, instead of the suffix's.",
            ),
            click.option(
                "--limit",
                type=click.IntRange(1),
                default=20,
                show_default=True,
                help="Most rows of a printed table.",
            ),
            click.option("--explain", "explained", is_flag=True, help="Explain each row in a sentence."),
            click.option(
                "--fail-on",
                default="",
                metavar="DECISIONS",
                help="Exit status 1 if the answer has rows of these (evict,oom-kill).",
            ),
        )
    ):
        function = option(function)
    return function


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that control where the answer goes and how it is computed."""
    for option in reversed(
        (
            click.option("--only", "only", multiple=True, help="Only these nodes: names or patterns."),
            click.option(
                "--node-selector-labels",
                "labels",
                default="",
                help="Only nodes with these labels (a=b,c!=d).",
            ),
            click.option(
                "--sample", type=click.IntRange(0), default=0, help="Only so many nodes, drawn with --seed."
            ),
            click.option("--seed", type=int, default=1, show_default=True, help="For --sample."),
            click.option("--shard-pods", type=click.IntRange(0), default=0, help="Pods in memory at a time."),
            click.option(
                "--dask", default="", metavar="SCHEDULER", help="Run node shards on this Dask cluster."
            ),
        )
    ):
        function = option(function)
    return answer_options(function)


def opened(options: dict[str, Any]) -> Cluster:
    """Open the cluster that the source options name, and remove them from `options`.

    `--kubeconfig` and `--context` name a running cluster. A kubectl plugin reads kubectl's cluster if no file
    is named. Otherwise the sources are files, or standard input if it is a pipe.
    """
    paths = list(options.pop("snapshot"))
    kubeconfig, context = options.pop("kubeconfig"), options.pop("context")
    node_documents, quiet = options.pop("node_documents"), options["quiet"]
    live = bool(kubeconfig or context)
    if live and paths:
        raise InvalidInput("contradicts --kubeconfig and --context", subject=paths[0])
    faults = FaultLog(strict=options["strict"])
    shown = not quiet and sys.stderr.isatty()
    # As a plugin of kubectl the command behaves like kubectl: without a file it asks the current cluster.
    if live or (not paths and click.get_current_context().obj == KUBECTL):
        cluster = Cluster(_running_cluster(kubeconfig, context, node_documents, faults, shown))
    else:
        cluster = Cluster.open(
            paths or ([] if sys.stdin.isatty() else ["-"]), strict=faults.strict, shown=shown, faults=faults
        )
    if faults.total and not quiet:
        report_faults(faults)
    return cluster


def _running_cluster(
    kubeconfig: str, context: str, node_documents: bool, faults: FaultLog, shown: bool
) -> Snapshot:
    from engine.plan.live.cluster_reader import read_cluster
    from engine.plan.live.contexts import find_context

    config = find_context(kubeconfig, context, os.environ)
    with progress(f"reading {config.server.authority}", 1.0, shown=shown, unit="questions") as step:
        return read_cluster(config, faults, node_documents=node_documents, step=step)


def computing(label: str, questions: int, options: dict[str, Any]) -> AbstractContextManager[Step]:
    """Show a progress bar over this many questions if standard error is a terminal."""
    shown = not options["quiet"] and sys.stderr.isatty()
    return progress(label, questions, shown=shown, unit="questions")


def report_faults(faults: FaultLog, what: str = "left out of the snapshot") -> None:
    for fault in faults.kept[:10]:
        click.echo(f"fault: {printable(str(fault))}", err=True)
    click.echo(f"{counted(faults.total, 'fault')} {what}:", err=True)
    for line in faults.summary()[:10]:
        click.echo(f"  {printable(line)}", err=True)


def deliver(
    answer: Answer, meta: Mapping[str, object], asked: dict[str, Any], options: dict[str, Any]
) -> None:
    """Write an answer as the options say; `meta` describes what was asked."""
    if options["as_json"] and options["format_"] not in (None, "json"):
        raise InvalidInput(f"contradicts --format {options['format_']}", subject="--json")
    format = format_for(options["output"], "json" if options["as_json"] else options["format_"] or "")
    source = provenance(meta, asked)
    if format == "html":
        from engine.plan.report import write_report

        if not options["output"]:
            raise InvalidInput("an HTML report needs a file", subject="--output")
        write_report(answer, source, Path(options["output"]))
    else:
        write_answer(answer, source, format, options["output"], options["limit"], table_console(WIDTH))
    if options["explained"]:
        for line in explain(answer, options["limit"]):
            click.echo(printable(line))
    if options["output"]:
        click.echo(f"{counted(len(answer), 'row')} in {options['output']}", err=True)
    if failed := matching_rows(answer, options["fail_on"]):
        for decision, count in failed.items():
            click.echo(f"failed: {count:,} rows of {decision}", err=True)
        click.get_current_context().exit(1)


def matching_rows(answer: Answer, decisions: str) -> dict[str, int]:
    """Return how many rows the answer has of each of these decisions (patterns, separated by commas)."""
    wanted = [text.strip() for text in decisions.split(",") if text.strip()]
    counts = Counter(answer.table["decision"].to_pylist()) if wanted else Counter()
    return {
        decision: count
        for decision, count in counts.items()
        if any(fnmatchcase(decision, pattern) for pattern in wanted)
    }


def verb(name: str) -> click.Command:
    """Build the command of one question."""
    asked = QUESTIONS[name]

    @functools.wraps(asked.function)
    def run(**options: Any) -> None:
        given = {field: options.pop(f"given_{field}") for field in asked.parameters.__struct_fields__}
        if options["explained"] and "account" in given:
            given["account"] = True
        parameters = parameters_from(asked.parameters, given)
        cluster = opened(options)
        selection = NodeSelection(options["only"], options["labels"], options["sample"], options["seed"])
        with computing(name, 1, options) as step, options_named(asked.parameters):
            answer = ask(
                cluster,
                name,
                parameters,
                selection=selection,
                shard_pods=options["shard_pods"],
                dask=options["dask"],
                step=step,
            )
        deliver(answer, cluster.meta, {"question": name, "parameters": given}, options)

    decorated = parameter_options(asked.parameters)(output_options(source_options(run)))
    help = f"{asked.summary}\n\n{inspect.cleandoc(asked.function.__doc__ or '')}\n\n{SNAPSHOT_HELP}"
    return click.command(name, help=help.replace("`", ""))(decorated)


class _PlanGroup(click.Group):
    """List question and file commands; a command that is not a question is imported when it is called."""

    COMPARISONS = ("diff", "compare")
    FILES = ("snapshot", "history", "synth", "place", "replay", "run", "schema")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*QUESTIONS, *self.COMPARISONS, *self.FILES]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        check_command(self, ctx, args)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in QUESTIONS:
            return verb(cmd_name)
        if cmd_name in (*self.COMPARISONS, *self.FILES):
            commands: dict[str, click.Command] = {}
            for module in ("plan_files", "plan_history", "plan_replay", "plan_scenarios"):
                commands |= import_module(f"engine.cli.{module}").COMMANDS
            return commands.get(cmd_name)
        return None


@click.group(cls=_PlanGroup)
def command() -> None:
    """Answer what-ifs over a whole cluster: which pods are preempted or evicted, what GC frees, what fits.

    Begin with a made-up cluster: kubengine plan synth | kubengine plan preempt --requests cpu=2 --critical
    """
