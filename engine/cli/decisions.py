"""Implement `kubengine decisions`: show what the agent decided, which component decided it, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import click
import msgspec

from engine.api.encoding.json_text import encode_json
from engine.cli.agent.client import AgentClient, agent_option

PATH = "/kubengine/decisions"


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Keep printing new decisions.")
@click.option("--pod", metavar="NS/NAME", help="Only about this pod (its name in `default`, or its uid).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", hidden=True)
@agent_option
def command(agent: AgentClient, follow: bool, pod: str | None, as_json: bool, output: str) -> None:
    """Show what the agent decided.

    Decisions are about admissions, preemptions, evictions and pressure, restarts, resizes, image pulls,
    collections of images and containers, and assignments of devices, CPUs and memory.
    """
    query = {"pod": pod} if pod else {}
    for decision in _followed(agent, query) if follow else _held(agent, query):
        plain = as_json or output == "json"
        click.echo(encode_json(decision).decode() if plain else _line(decision))


def _held(agent: AgentClient, query: dict[str, str]) -> Iterable[dict[str, Any]]:
    decisions: list[dict[str, Any]] = agent.get_json(PATH, **query)["decisions"]
    return decisions


def _followed(agent: AgentClient, query: dict[str, str]) -> Iterator[dict[str, Any]]:
    for line in agent.lines(PATH, **query, follow="true"):
        yield msgspec.json.decode(line)


def _line(decision: dict[str, Any]) -> str:
    """Format a decision as one line: time, action and object, reason, deciding component."""
    about = "/".join(decision[part] for part in ("pod", "container") if part in decision) or "node"
    when = datetime.fromtimestamp(decision["time"]).strftime("%Y-%m-%d %H:%M:%S")
    inputs = " ".join(
        f"{name}={value if isinstance(value, str) else encode_json(value).decode()}"
        for name, value in decision.get("inputs", {}).items()
    )
    why = decision.get("reason", "")
    said = f"{when} {decision['kind']} {decision['outcome']} {about}" + (f": {why}" if why else "")
    return f"{said} ({inputs})" if inputs else said
