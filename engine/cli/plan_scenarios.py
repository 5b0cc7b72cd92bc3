"""Implement `kubengine plan run`, `diff` and `schema`: run scenario files, and compare one question under two
settings.
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
    deliver(outcome.answer, cluster, asked, options)
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
    asked_of = []
    for name, side in zip("ab", sides, strict=True):
        try:
            asked_of.append(msgspec.convert(laid_over(base, side), QUESTIONS[question].parameters))
        except msgspec.ValidationError as error:
            text, path = split_error(error)
            where = ".".join(map(str, path))
            if text == "unknown field":
                text += expected_fields(where, QUESTIONS[question].parameters)
            raise InvalidInput(f"{where}: {text}" if where else text, subject=f"-{name}") from None
        except InvalidInput as error:
            raise InvalidInput(str(error), subject=f"-{name}") from None
    with computing(question, len(sides), options) as step:
        answers = [
            ask(
                cluster, question, parameters, selection=selection,
                shard_pods=options["shard_pods"], dask=options["dask"], step=step,
            )
            for parameters in asked_of
        ]  # fmt: skip
    asked = {"question": question, "with": base, "a": sides[0], "b": sides[1]}
    deliver(difference(*answers), cluster, asked, options)


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


COMMANDS: dict[str, click.Command] = {"run": run, "diff": diff, "schema": schema}
