"""Implement `kubengine devices`: show the devices of plugins and of prepared claims, with their health and
owners.
"""

from __future__ import annotations

from typing import Any

import click

from engine.cli.agent.client import AgentClient, agent_option, json_option, print_json


@click.command()
@agent_option
@json_option
@click.option("--resource", metavar="NAME", help="Only this resource.")
@click.option(
    "--explain", metavar="POD", help="Explain why this pod (namespace/name, name or uid) has its devices."
)
def command(agent: AgentClient, as_json: bool, resource: str | None, explain: str | None) -> None:
    """Show device plugin resources, ResourceClaims, their devices and the pods that hold them."""
    query = {"resource": resource, "explain": explain}
    answer = agent.describe("devices", **{key: value for key, value in query.items() if value})
    resources = answer["resources"]
    if as_json:
        print_json(answer)
    elif explain:
        _explain(answer["explain"], explain)
    else:
        if resources:
            _tables(resources)
        else:
            click.echo("No device plugin has registered.")
        if answer.get("claims"):
            click.echo()
            _claims(answer["claims"])


def _tables(resources: list[dict[str, Any]]) -> None:
    from rich.table import Column, Table

    from engine.cli.output.console import table_console

    console = table_console()
    summary = Table("Resource", "Capacity", "Allocatable", "Allocated", "Plugin", "Remarks", box=None)
    devices = Table(
        "Resource", Column("Device", overflow="fold"), "Health", "NUMA", "Pod", "Container", box=None
    )
    for entry in resources:
        counts = [str(entry[key]) for key in ("capacity", "allocatable", "allocated")]
        remarks = f"lists {entry['complaint']}" if entry["complaint"] else ""
        summary.add_row(entry["name"], *counts, entry["plugin"], remarks)
        for device in entry["devices"]:
            # A device without a topology may be anywhere; one with an empty topology is at no node.
            numa = "-" if device["numa"] is None else ",".join(map(str, device["numa"])) or "none"
            owners = device["owners"] or [{"pod": "-", "podUID": "-", "container": "-"}]
            pods = ", ".join(dict.fromkeys(owner["pod"] or owner["podUID"] for owner in owners))
            containers = ", ".join(owner["container"] for owner in owners)
            devices.add_row(entry["name"], device["id"], device["health"], numa, pods, containers)
    console.print(summary)
    console.print()
    console.print(devices)


def _claims(claims: list[dict[str, Any]]) -> None:
    from rich.table import Column, Table

    from engine.cli.output.console import table_console

    table = Table(
        Column("ResourceClaim", overflow="fold"),
        "Driver",
        Column("Device", overflow="fold"),
        "Health",
        "NUMA",
        Column("Pods", overflow="fold"),
        "Remarks",
        box=None,
    )
    nothing = {"pool": "", "device": "-", "health": "-", "numa": None, "message": ""}
    for claim in claims:
        # A driver that has prepared its share of a claim may not have named devices for it.
        unnamed = sorted(set(claim["drivers"]) - {device["driver"] for device in claim["devices"]})
        devices = [*claim["devices"], *({"driver": driver, **nothing} for driver in unnamed)]
        for device in devices:
            numa = "-" if device["numa"] is None else str(device["numa"])
            name = "/".join(filter(None, (device["pool"], device["device"])))
            remarks = device["message"] or ("" if claim["prepared"] else "not prepared by this agent yet")
            pods = ", ".join(claim["pods"])
            table.add_row(claim["claim"], device["driver"], name, device["health"], numa, pods, remarks)
    table_console().print(table)


def _explain(lines: list[dict[str, Any]], pod: str) -> None:
    if not lines:
        click.echo(f"{pod} holds no devices.")
    for line in lines:
        click.echo(f"{line['container']}: {line['resource']} {', '.join(line['devices'])}")
        if line["numa"] is not None:
            click.echo(f"  NUMA nodes chosen: {', '.join(map(str, line['numa']))}")
        for why in line["why"]:
            click.echo(f"  {', '.join(why['devices'])}: {why['reason']}")
