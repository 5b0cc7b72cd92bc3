"""Implement `kubengine eviction`: show the distance to each threshold, and the pods that would be evicted
first.
"""

from __future__ import annotations

from typing import Any

import click

from engine.cli.agent.client import AgentClient, agent_option, json_option, print_json
from engine.cli.output.amounts import show_bytes

DISK_DEADLINE = 120.0
_COUNTED = ("inodesFree", "pid.")


@click.command()
@click.option("--disk", is_flag=True, help="Rank by disk too: walks through the files of every pod.")
@json_option
@agent_option
def command(agent: AgentClient, as_json: bool, disk: bool) -> None:
    """Show signals, the distance to each threshold, and which pods would be evicted first and why."""
    # The agent walks through the volumes and logs of every pod before it answers.
    if disk:
        agent.timeout = DISK_DEADLINE
    answer = agent.describe("eviction", **({"disk": "true"} if disk else {}))
    if as_json:
        print_json(answer)
        return
    from rich.table import Table

    from engine.cli.output.console import table_console

    console = table_console()
    table = Table("Signal", "Available", "Of", "Threshold", "Kind", "Distance", box=None)
    for threshold in answer["thresholds"]:
        signal = threshold["signal"]
        observed = answer["signals"].get(signal, {})
        distance = threshold["distance"]
        grace = threshold["gracePeriod"]
        table.add_row(
            signal,
            _amount(signal, observed.get("available")),
            _amount(signal, observed.get("capacity")),
            threshold["value"],
            f"soft, {grace:g} s" if grace else "hard",
            "not measured" if distance is None else "MET" if distance < 0 else _amount(signal, distance),
        )
    console.print(table)
    click.echo(f"conditions: {', '.join(answer['conditions']) or 'none'}; disk layout: {answer['layout']}")
    for resource, candidates in answer["first"].items():
        _candidates(console, resource, candidates)


def _candidates(console: Any, resource: str, candidates: list[dict[str, Any]]) -> None:
    from rich.table import Table

    if not candidates:
        return
    table = Table("#", "Pod", "QoS", "Priority", "Usage", "Request", "Why", box=None)
    for candidate in candidates:
        in_bytes = resource != "pids"
        table.add_row(
            str(candidate["place"]),
            candidate["pod"],
            candidate["qos"],
            str(candidate["priority"]),
            show_bytes(candidate["usage"]) if in_bytes else _count(candidate["usage"]),
            show_bytes(candidate["request"]) if in_bytes else "-",
            candidate["why"],
        )
    click.echo(f"\nwhen short of {resource}:")
    console.print(table)


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def _amount(signal: str, amount: int | None) -> str:
    if amount is None:
        return "-"
    return str(amount) if any(part in signal for part in _COUNTED) else show_bytes(amount)
