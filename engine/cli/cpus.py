"""Implement `kubengine cpus`: show the machine's CPUs by NUMA node and cache, and the containers that own
them exclusively.
"""

from __future__ import annotations

from itertools import cycle
from string import ascii_letters
from typing import Any

import click

from engine.api import cpu_set
from engine.cli.agent.client import AgentClient, agent_option, json_option, print_json

RESERVED, SHARED = "#", "."


@click.command()
@agent_option
@json_option
def command(agent: AgentClient, as_json: bool) -> None:
    """Show which containers have exclusive CPUs, and where those are.

    Each character is a CPU, and the CPUs of a core stand together. A letter marks a CPU of the container
    with that letter, # is reserved, . is shared. Offline CPUs are listed below the map.
    """
    answer = agent.describe("cpus")
    if as_json:
        print_json(answer)
        return
    for line in cpu_map(answer):
        click.echo(line)


def cpu_map(answer: dict[str, Any]) -> list[str]:
    """Return the lines of the map and its legend."""
    signs: dict[int, str] = dict.fromkeys(cpu_set.numbers(cpu_set.parse(answer["reserved"])), RESERVED)
    legend = []
    for letter, one in zip(cycle(ascii_letters), answer["containers"], strict=False):
        signs.update(dict.fromkeys(cpu_set.numbers(cpu_set.parse(one["cpus"])), letter))
        name = one["pod"] or one["podUID"]
        legend.append(f"{letter}  CPUs {one['cpus']}  {name}  {one['container']}")
    places: dict[tuple[int, int, int], dict[int, list[int]]] = {}
    for cpu in answer["processors"]:
        cores = places.setdefault((cpu["node"], cpu["socket"], cpu["cache"]), {})
        cores.setdefault(cpu["core"], []).append(cpu["cpu"])
    lines = []
    for (node, socket, cache), cores in sorted(places.items()):
        drawn = ["".join(signs.get(cpu, SHARED) for cpu in sorted(cpus)) for cpus in cores.values()]
        lines.append(f"node {node}  socket {socket}  cache {cache}  {' '.join(drawn)}")
    lines.append("")
    if answer["reserved"]:
        lines.append(f"{RESERVED}  CPUs {answer['reserved']}  reserved, and shared unless strict")
    lines.append(f"{SHARED}  CPUs {answer['shared']}  {_sharing(answer)}")
    for pool in answer.get("pools", []):
        lines.append(f"   CPUs {pool['cpus'] or 'none'}  pool {pool['name']}, pods: {pool['pods']}")
    if answer["offline"]:
        lines.append(f"   CPUs {answer['offline']}  offline")
    return [*lines, *legend]


def _sharing(answer: dict[str, Any]) -> str:
    if answer["policy"] == "none":
        return "all containers, because the CPU manager's policy is none"
    return "all other containers" if answer["containers"] else "all containers"
