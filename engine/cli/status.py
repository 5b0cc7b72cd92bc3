"""Implement `kubengine status`: show the pods of a running agent."""

from __future__ import annotations

import time

import click

from engine.cli.agent.client import AgentClient, agent_option, json_option, print_json


@click.command()
@click.option("-n", "--namespace", metavar="NAME", help="Only this namespace.")
@json_option
@agent_option
def command(agent: AgentClient, as_json: bool, namespace: str | None) -> None:
    """Show each pod with its QoS class, phase, restarts and the values in its cgroup."""
    from engine.cli.output.pod_table import pod_rows, pod_table

    pods = agent.get_json("/pods")["items"]
    if namespace:
        pods = [pod for pod in pods if pod["metadata"].get("namespace") == namespace]
    rows = pod_rows(pods, agent.describe("cgroups")["groups"])
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo("no pods")
        return
    from engine.cli.output.console import table_console

    table_console().print(pod_table(rows, now=time.time()))
