"""Implement `kubengine plan run`, `diff`, `compare` and `schema`: run scenario files, and compare one
question under two settings, or two snapshots.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.cli.plan import computing, deliver, opened, output_options, source_options
from engine.plan.answers.diff import difference
from engine.plan.cluster import Cluster, NodeSelection, ask
from engine.plan.cluster import compare as compare_clusters
from engine.plan.questions import QUESTIONS
from engine.plan.reading.yaml_document import split_error
from engine.plan.scenario import Plan, expected_fields, laid_over, scenario_schema
from engine.plan.synth.cluster import synthesize


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@output_options
@source_options
@click.pass_context
def run(context: click.Context, /, file: str, **options: Any) -> None:
    """Ask all questions of a scenario file. Exit status 1 if an assertion does not hold."""
    plan = Plan(Path(file))
    cluster = _cluster(plan, options)
    with computing(Path(file).name, plan.questions, options) as step:
        outcome = plan.run(cluster, shard_pods=options["shard_pods"], dask=options["dask"], step=step)
    asked = {"file": file, "points": [name for _, name, _ in outcome.points], "seed": plan.file.seed}
    asked["failures"] = [f"{failure.scenario}: {failure.message}" for failure in outcome.failures]
    deliver(outcome.answer, cluster.meta, asked, options)
    for failure in outcome.failures:
        click.echo(f"failed: {failure.scenario}: {failure.message}", err=True)
    checked = sum(len(scenario.fail_if) for scenario in plan.file.scenarios)
    click.echo(
        f"{len(outcome.points)} points, {checked} assertions, {len(outcome.failures)} failed", err=True
    )
    if outcome.failures:
        context.exit(1)


def _cluster(plan: Plan, options: dict[str, Any]) -> Cluster:
    if not (options["snapshot"] or options["kubeconfig"] or options["context"]):
        if plan.file.synthetic is not None:
            made = plan.file.synthetic
            return Cluster(synthesize(made.nodes, made.pods_per_node, plan.file.seed))
        options["snapshot"] = tuple(str(plan.path.parent / path) for path in plan.file.snapshot)
    return opened(options)


@click.command()
@click.argument("question", type=click.Choice(list(QUESTIONS)))
@click.option("--with", "common", default="{}", metavar="JSON", help="Parameters of both sides.")
@click.option("-a", "side_a", default="{}", metavar="JSON", help='Parameters of A, as {"policy": "kubelet"}.')
@click.option("-b", "side_b", default="{}", metavar="JSON", help='Parameters of B, as {"policy": "minimal"}.')
@output_options
@source_options
def diff(question: str, common: str, side_a: str, side_b: str, **options: Any) -> None:
    """Ask one question under A and under B, and show what differs."""
    base = _object(common, "--with")
    sides = [_object(side_a, "-a"), _object(side_b, "-b")]
    cluster = opened(options)
    selection = NodeSelection(options["only"], options["labels"], options["sample"], options["seed"])
    asked_of = [
        _parameters(question, laid_over(base, side), f"-{name}")
        for name, side in zip("ab", sides, strict=True)
    ]
    with computing(question, len(sides), options) as step:
        answers = [
            ask(
                cluster, question, parameters, selection=selection,
                shard_pods=options["shard_pods"], dask=options["dask"], step=step,
            )
            for parameters in asked_of
        ]  # fmt: skip
    asked = {"question": question, "with": base, "a": sides[0], "b": sides[1]}
    deliver(difference(*answers), cluster.meta, asked, options)


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--ask", "questions", multiple=True, type=click.Choice(list(QUESTIONS)), help="Also compare its answers."
)
@click.option("--with", "common", default="{}", metavar="JSON", help="Parameters of these questions.")
@click.option("--strict", is_flag=True, help="Refuse a snapshot with a fault instead of counting it.")
@click.option("--quiet", is_flag=True, help="No progress bar and no list of faults.")
@output_options
def compare(a: str, b: str, questions: tuple[str, ...], common: str, **options: Any) -> None:
    """Compare two snapshots of a cluster: which nodes and pods came, went, moved and grew from A to B.

    With --ask, also show how the answers to these questions differ.
    """
    given = _object(common, "--with")
    clusters = []
    for path in (a, b):
        source = {"snapshot": (path,), "kubeconfig": "", "context": "", "node_documents": True}
        clusters.append(opened(source | {name: options[name] for name in ("strict", "quiet")}))
    selection = NodeSelection(options["only"], options["labels"], options["sample"], options["seed"])
    asked = {name: _parameters(name, given, "--with") for name in questions}
    with computing("compare", max(len(questions), 1), options) as step:
        answer = compare_clusters(clusters[0], clusters[1], asked, selection=selection, step=step)
    deliver(
        answer, clusters[1].meta, {"question": "compare", "a": a, "b": b, "ask": list(questions)}, options
    )


def _parameters(question: str, given: dict[str, Any], option: str) -> msgspec.Struct:
    """Return a question's parameters. Raise `InvalidInput` naming the field and the option."""
    kind = QUESTIONS[question].parameters
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        text, path = split_error(error)
        where = ".".join(map(str, path))
        if text == "unknown field":
            text += expected_fields(where, kind)
        raise InvalidInput(f"{where}: {text}" if where else text, subject=option) from None
    except InvalidInput as error:
        raise InvalidInput(str(error), subject=option) from None


def _object(text: str, option: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"expected a JSON object: {error}", subject=option) from None
    return found


@click.command()
def schema() -> None:
    """Print the JSON schema of scenario files, for editors."""
    click.echo(msgspec.json.format(encode_json(scenario_schema()), indent=2).decode())


COMMANDS: dict[str, click.Command] = {"run": run, "diff": diff, "compare": compare, "schema": schema}
