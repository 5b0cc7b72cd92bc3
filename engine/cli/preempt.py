"""`kubengine preempt`: whether a node takes a pod, and who would die for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from engine.api.sizes import quantity_size
from engine.cli._agent import Agent, agent_option, json_option, print_json

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--dry-run", is_flag=True, help="Said for clearness: this command never evicts anybody.")
@click.option("-f", "--file", "file", type=FILE, help="Manifest of the pod that wants to come (YAML, JSON).")
@click.option("--requests", multiple=True, metavar="KEY=VALUE", help="Resource requests of the pod instead.")
@click.option("--limits", multiple=True, metavar="KEY=VALUE", help="Resource limits.")
@click.option("--name", default="", help="How the answer calls the pod.")
@click.option("--priority", type=click.IntRange(-(2**31), 2**31 - 1), help="spec.priority")
@click.option("--critical", is_flag=True, help="Priority 2000000000: the pod may preempt.")
@click.option("--static", is_flag=True, help="Treat it as a pod from the manifest directory: critical.")
@click.option(
    "--policy", metavar="NAME", default="", help="kubelet, priority or minimal.  [default: the node's]"
)
@click.option("--node", type=FILE, help="Ask about this Node object instead of a running agent.")
@click.option("--pods", "pods_file", type=FILE, help="The pods on `--node`: a file of Pods or a PodList.")
@json_option
@agent_option
def command(
    agent: Agent,
    as_json: bool,
    dry_run: bool,
    file: Path | None,
    requests: tuple[str, ...],
    limits: tuple[str, ...],
    name: str,
    priority: int | None,
    critical: bool,
    static: bool,
    policy: str,
    node: Path | None,
    pods_file: Path | None,
) -> None:
    """Say whether a node would take a pod and, for a critical one, whom it would preempt and why.

    Asks the running agent, or works on files: `kubectl get node N -o yaml` and `kubectl get pods -A
    --field-selector spec.nodeName=N -o yaml` make them.

    Exit status: 0 the pod is taken (perhaps after preemption), 3 it is not.
    """
    if pods_file is not None and node is None:
        raise click.UsageError("--pods needs --node")
    pod = _asked_pod(file, requests, limits)
    _change(pod, name=name, priority=priority, critical=critical, static=static)
    if node is None:
        from engine.api.struct import to_json

        answer = agent.act("admission", "dry-run", pod=to_json(pod).decode(), policy=policy)
    else:
        answer = _from_files(pod, node, pods_file, policy)
    if as_json:
        print_json(answer)
    else:
        _print(answer)
    if not answer["admit"]:
        raise click.exceptions.Exit(3)


def _asked_pod(file: Path | None, requests: tuple[str, ...], limits: tuple[str, ...]) -> Any:
    """From the manifest, with one container of these amounts where they are given."""
    from engine.api.documents import convert, load_pods
    from engine.api.errors import InvalidInput
    from engine.api.pod import Pod
    from engine.cli.plan_options import key_values

    if file is None and not requests and not limits:
        raise click.UsageError("say which pod: --file or --requests")
    pods = [convert({"metadata": {"name": "pod"}}, Pod, "pod")]
    if file is not None:
        pods, warnings = load_pods(file)
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
    if len(pods) != 1:
        raise InvalidInput(f"expected one Pod, got {len(pods)}", subject=str(file))
    if requests or limits:
        amounts = {"requests": key_values("requests", requests), "limits": key_values("limits", limits)}
        container = {"name": "main", "resources": amounts}
        pods[0].spec.containers = convert({"spec": {"containers": [container]}}, Pod, "pod").spec.containers
        pods[0].spec.init_containers = None
    return pods[0]


def _change(pod: Any, *, name: str, priority: int | None, critical: bool, static: bool) -> None:
    from engine.api.qos import SOURCE_ANNOTATION, SYSTEM_CRITICAL_PRIORITY

    pod.metadata.name = name or pod.metadata.name
    if critical:
        pod.spec.priority = SYSTEM_CRITICAL_PRIORITY
    if priority is not None:
        pod.spec.priority = priority
    if static:
        pod.metadata.annotations = {**pod.annotations, SOURCE_ANNOTATION: "file"}


def _from_files(pod: Any, node_file: Path, pods_file: Path | None, policy: str) -> dict[str, Any]:
    from engine.admission import POLICIES, AdmittedPods, decide
    from engine.api.defaults import apply_defaults
    from engine.api.documents import convert, load_pods, parse_documents, read_text
    from engine.api.errors import InvalidInput
    from engine.api.node import Node

    if policy and policy not in POLICIES:
        raise click.BadParameter(f"expected one of {', '.join(POLICIES)}", param_hint="--policy")
    nodes = parse_documents(read_text(node_file), str(node_file))
    if len(nodes) != 1 or nodes[0].get("kind") != "Node":
        raise InvalidInput("expected one v1 Node", subject=str(node_file))
    others = load_pods(pods_file)[0] if pods_file is not None else []
    running = [other for other in others if other.status.phase not in ("Succeeded", "Failed")]
    for number, other in enumerate(running):
        apply_defaults(other)
        other.metadata.uid = other.uid or f"pod {number} of {pods_file}"
    apply_defaults(pod)
    pod.metadata.uid = f"dry-run of {pod.full_name}"
    admitted = AdmittedPods(convert(nodes[0], Node, str(node_file)), running)
    verdict = decide(admitted, pod, policy=policy or "kubelet")
    return verdict.describe({other.uid: other.full_name for other in running})


def _print(answer: dict[str, Any]) -> None:
    preemption = answer["preemption"]
    if answer["admit"] and preemption is None:
        click.echo(f"{answer['pod']} fits.")
        return
    if not answer["admit"]:
        click.echo(f"{answer['pod']} is rejected: {answer['reason']}: {answer['message']}")
        if not answer["critical"]:
            click.echo("It is not critical, so it preempts nobody (--static treats it as a static pod).")
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    count = len(preemption["victims"])
    click.echo(
        f"{answer['pod']} comes in after {count} pod{'s' if count != 1 else ''} "
        f"{'are' if count != 1 else 'is'} preempted (policy {preemption['policy']}). "
        f"Short: {_amounts(preemption['requirements'])}."
    )
    if preemption["note"]:
        click.echo(preemption["note"])
    console.print(_steps(preemption["steps"]))
    if preemption["passedOver"]:
        console.print(_others(preemption["passedOver"]))


def _steps(steps: list[dict[str, Any]]) -> Any:
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


def _others(others: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(title="Left alone", title_justify="left", box=None, pad_edge=False)
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
