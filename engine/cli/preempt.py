"""Implement `kubengine preempt`: tell whether a node takes a pod, and which pods would be
preempted for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from engine.admission.asked_pod import PodParameters, pods_asked_about
from engine.api.amounts.sizes import quantity_size
from engine.api.encoding.counts import counted
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import SOURCE_ANNOTATION, SOURCE_FILE
from engine.cli.agent.client import AgentClient, agent_option, json_option, print_json
from engine.cli.plan_options import parameter_options, parameters_from

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@parameter_options(PodParameters)
@click.option("--static", is_flag=True, help="Treat it as a pod from the manifest directory: critical.")
@click.option(
    "--policy", metavar="NAME", default="", help="kubelet, priority or minimal.  [default: the node's]"
)
@click.option("--node", type=FILE, help="Ask about this Node object instead of a running agent.")
@click.option("--pods", "pods_file", type=FILE, help="The pods on `--node`: a file of Pods or a PodList.")
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="Most rows of a printed table."
)
@click.option("--dry-run", is_flag=True, help="Accepted for clarity: this command never evicts a pod.")
@json_option
@agent_option
def command(
    agent: AgentClient,
    as_json: bool,
    dry_run: bool,
    static: bool,
    policy: str,
    node: Path | None,
    pods_file: Path | None,
    limit: int,
    **given: Any,
) -> None:
    """Show whether a pod fits on a node and, for a critical pod, which pods it would preempt and why.

    Asks the running agent, or works on files, which `kubectl get node N -o yaml` and `kubectl get pods -A
    --field-selector spec.nodeName=N -o yaml` produce.

    Exit status: 0 the pod is taken (perhaps after preemption), 3 it is not.
    """
    if pods_file is not None and node is None:
        raise click.UsageError("--pods needs --node")
    parameters = parameters_from(PodParameters, {name.removeprefix("given_"): v for name, v in given.items()})
    assert isinstance(parameters, PodParameters)
    if not (parameters.file or parameters.like or parameters.requests or parameters.limits):
        raise click.UsageError("say which pod: --file, --like or --requests")
    others = _ExistingPods(agent if node is None else None, pods_file)
    pod = _asked_pod(parameters, others, static=static)
    if node is None:
        from engine.api.struct import to_builtins, to_json

        document = {"apiVersion": pod.api_version, "kind": pod.kind, **to_builtins(pod)}
        answer = agent.act("admission", "dry-run", pod=to_json(document).decode(), policy=policy)
    else:
        answer = _from_files(pod, node, others.pods, policy)
    if as_json:
        print_json(answer)
    else:
        _print(answer, limit)
    if not answer["admit"]:
        raise click.exceptions.Exit(3)


class _ExistingPods:
    """Read the existing pods on demand, from the running agent or a file."""

    def __init__(self, agent: AgentClient | None, file: Path | None) -> None:
        self._agent = agent
        self._file = file

    @cached_property
    def pods(self) -> list[Pod]:
        from engine.api.documents import convert, load_pods

        if self._agent is not None:
            listed = self._agent.get_json("/pods").get("items") or ()
            return [convert(item, Pod, "pod of the agent") for item in listed]
        return load_pods(self._file)[0] if self._file is not None else []

    def like(self, label: str) -> Pod:
        """Return a copy of the pod that runs as `namespace/name`, without its node assignment."""
        namespace, _, name = label.rpartition("/")
        for pod in self.pods:
            if (pod.metadata.namespace or "default", pod.metadata.name) == (namespace or "default", name):
                meta = replace(pod.metadata, uid="")
                return Pod(metadata=meta, spec=replace(pod.spec))
        raise InvalidInput("no such pod", subject=label)

    def class_priority(self, name: str) -> int | None:
        """Return the value of a PriorityClass, which a node knows only from pods of that class."""
        return next((pod.spec.priority for pod in self.pods if pod.spec.priority_class_name == name), None)


def _asked_pod(parameters: PodParameters, others: _ExistingPods, *, static: bool) -> Pod:
    pods = pods_asked_about(
        parameters,
        like=others.like,
        class_priority=others.class_priority,
        warn=lambda warning: click.echo(f"warning: {warning}", err=True),
    )
    if len(pods) != 1:
        raise InvalidInput(f"expected one Pod, got {len(pods)}", subject=parameters.file)
    (pod,) = pods
    if static:
        pod.metadata.annotations = {**pod.annotations, SOURCE_ANNOTATION: SOURCE_FILE}
    return pod


def _from_files(pod: Pod, node_file: Path, others: Sequence[Pod], policy: str) -> dict[str, Any]:
    from engine.admission import POLICIES, NodeAllocations, decide
    from engine.api.defaults import apply_defaults
    from engine.api.documents import convert, parse_documents, read_text
    from engine.api.node import Node

    if policy and policy not in POLICIES:
        raise click.BadParameter(f"expected one of {', '.join(POLICIES)}", param_hint="--policy")
    nodes = parse_documents(read_text(node_file), str(node_file))
    if len(nodes) != 1 or nodes[0].get("kind") != "Node":
        raise InvalidInput("expected one v1 Node", subject=str(node_file))
    # Pods that have ended hold nothing, but `kubectl get pods` lists them until they are deleted.
    running = [other for other in others if other.status.phase not in ("Succeeded", "Failed")]
    for number, other in enumerate(running):
        apply_defaults(other)
        other.metadata.uid = other.uid or f"pod {number}"
    # A file that was saved from a cluster may hold this very pod, which would be refused as known already.
    pod.metadata.uid = f"dry-run of {pod.full_name}"
    admitted = NodeAllocations(convert(nodes[0], Node, str(node_file)), running)
    verdict = decide(admitted, pod, policy=policy or "kubelet")
    return verdict.describe({other.uid: other.full_name for other in running})


def _print(answer: dict[str, Any], limit: int) -> None:
    preemption = answer["preemption"]
    if answer["admit"] and preemption is None:
        click.echo(f"{answer['pod']} fits.")
        return
    if not answer["admit"]:
        click.echo(f"{answer['pod']} is rejected: {answer['reason']}: {answer['message']}")
        if not answer["critical"]:
            click.echo("It is not critical, so it preempts no pod (--static treats it as a static pod).")
        return
    from engine.cli.output.console import table_console

    console = table_console()
    count = len(preemption["victims"])
    click.echo(
        f"{answer['pod']} is admitted after {counted(count, 'pod')} "
        f"{'are' if count != 1 else 'is'} preempted (policy {preemption['policy']}). "
        f"Short: {_amounts(preemption['requirements'])}."
    )
    if preemption["note"]:
        click.echo(preemption["note"])
    for rows, table in ((preemption["steps"], _steps_table), (preemption["passedOver"], _passed_over_table)):
        if rows:
            console.print(table(rows[:limit]))
        if len(rows) > limit:
            click.echo(f"… and {len(rows) - limit} more (--limit)")


def _steps_table(steps: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(title="Preempted, in the order of choice", title_justify="left", box=None, pad_edge=False)
    for title in ("VICTIM", "QOS", "PRIORITY", "STILL SHORT BEFORE", "FREES OF THAT"):
        table.add_column(title, overflow="fold")
    table.add_column("DISTANCE", justify="right")
    for step in steps:
        table.add_row(
            step["name"],
            step["qos"],
            "-" if step["priority"] is None else str(step["priority"]),
            _amounts(step["short"]),
            _amounts(step["frees"]),
            f"{step['distance']:.4g}",
        )
    return table


def _passed_over_table(others: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(title="Not preempted", title_justify="left", box=None, pad_edge=False)
    for title in ("POD", "QOS", "PRIORITY", "WHY"):
        table.add_column(title, overflow="fold")
    for other in others:
        priority = "-" if other["priority"] is None else str(other["priority"])
        table.add_row(other["name"], other["qos"], priority, other["why"])
    return table


def _amounts(amounts: list[dict[str, Any]]) -> str:
    return ", ".join(f"{one['resource']} {_amount(**one)}" for one in amounts) or "nothing"


def _amount(resource: str, quantity: int) -> str:
    if resource == "cpu":
        return f"{quantity}m"
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return quantity_size(quantity)
    return str(quantity)
