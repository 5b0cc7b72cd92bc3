"""Implement `kubengine probes`: show every probe of a running agent, and what probing costs on
this machine.
"""

from __future__ import annotations

import time
from typing import Any

import click

from engine.cli.agent.client import AgentClient, agent_option, json_option, print_json

_STYLE = {"success": "green", "failure": "red", "unknown": "yellow"}


@click.group(invoke_without_command=True)
@click.pass_context
@agent_option
@json_option
@click.option("--pod", metavar="POD", help="Only this pod (namespace/name, name or uid).")
@click.option("--failing", is_flag=True, help="Only probes whose last attempt did not succeed.")
@click.option("--seconds", type=click.FloatRange(min=0), help="Measure commands in containers for this long.")
def command(
    context: click.Context,
    agent: AgentClient,
    as_json: bool,
    pod: str | None,
    failing: bool,
    seconds: float | None,
) -> None:
    """Show liveness, readiness and startup probes: state, streak, duration, lateness, next run, and what
    commands in containers cost.
    """
    if context.invoked_subcommand is not None:
        return
    query = {"pod": pod} if pod else {}
    commands = agent.describe("probe-commands", **query)["pods"]
    if seconds is not None:
        time.sleep(seconds)
        commands = _since(commands, agent.describe("probe-commands", **query)["pods"])
    answer = agent.describe("probes", **query) | {"commands": commands}
    if failing:
        answer["probes"] = [p for p in answer["probes"] if p["last"] == "failure" or p["result"] == "failure"]
    if as_json:
        print_json(answer)
    else:
        _table(answer, "at most " if seconds is None else "")


@command.command()
@click.argument("target")
@json_option
@click.option("--probes", default=1000, show_default=True, help="How many probes to register.")
@click.option("--period", default=1.0, show_default=True, help="Seconds between two runs of a probe.")
@click.option("--seconds", default=5.0, show_default=True, help="How long to watch, after one period.")
@click.option("--timeout", default=1.0, show_default=True, help="Seconds that an answer may take.")
@click.option("--spread", default=1, show_default=True, help="Use this many addresses from the target's on.")
def bench(
    target: str, as_json: bool, probes: int, period: float, seconds: float, timeout: float, spread: int
) -> None:
    """Probe TARGET (http://127.0.0.1:8080/healthz, tcp://127.0.0.1:6379, grpc://127.0.0.1:9000/service) on
    loopback and measure rate, CPU, duration and lateness.
    """
    from msgspec.structs import asdict

    from engine.probes.measure import measure

    found = measure(target, probes=probes, period=period, seconds=seconds, timeout=timeout, spread=spread)
    if as_json:
        print_json({**asdict(found), "rate": found.rate, "cpu_per_probe": found.cpu_per_probe})
        return
    click.echo(f"probes       {found.probes} in {found.seconds:.1f} s, {found.rate:,.0f} a second")
    click.echo(f"outcomes     {found.successful} successful, {found.failed} failed, {found.errored} errors")
    click.echo(
        f"CPU          {found.cpu_per_probe * 1e6:.1f} µs a probe, "
        f"{100 * found.cpu_seconds / found.seconds:.1f} % of a core"
    )
    click.echo(f"duration     mean {_time(found.duration_mean)}, 99 % within {_time(found.duration_p99)}")
    click.echo(f"lateness     mean {_time(found.lateness_mean)}, 99 % within {_time(found.lateness_p99)}")
    click.echo(f"connections  at most {found.most_connections} at once")
    click.echo(f"entries into Python while measuring: {found.entries_into_python}")
    if found.failed or found.errored:
        raise click.ClickException("not every probe was successful")


def _table(answer: dict[str, Any], span: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from engine.cli.output.console import table_console

    if not answer["probes"]:
        click.echo("No probes.")
        return
    table = Table(
        "Pod",
        "Container",
        "Probe",
        "Target",
        "Result",
        "Streak",
        "Duration",
        "Late",
        "Next",
        "Output",
        box=None,
    )
    for probe in answer["probes"]:
        streak = f"{probe['streak']}/{probe['threshold']} {probe['last']}" if probe["streak"] else ""
        following = (
            "ended" if probe["ended"] else "on hold" if probe["on_hold"] else _time(probe["next_seconds"])
        )
        output = "" if probe["last"] == "success" else " ".join(probe["output"].split())[:60]
        table.add_row(
            probe["pod"],
            probe["container"],
            f"{probe['type']} {probe['kind']}",
            probe["target"],
            Text(probe["result"] or "-", style=_STYLE.get(probe["result"], "dim")),
            streak,
            _time(probe["duration_seconds"]),
            _time(probe["lateness_seconds"]),
            following,
            Text(output),
        )
    console = table_console()
    console.print(table)
    _commands(answer, span)
    loop = answer["loop"]
    connections = f"{loop['open_connections']} of {loop['max_connections']} connections open"
    console.print(
        f"\n{loop['begun']} runs, {loop['late']} late, {connections}, {loop['queued']} waiting, "
        f"{loop['entries_into_python']} entries into Python",
        highlight=False,
    )


def _commands(answer: dict[str, Any], span: str) -> None:
    """Return the cost of commands in containers by pod, and what would run the same commands at lower cost.
    `span` precedes the runtime's use: an upper bound since the pod began, or empty if it was measured
    between two samples.
    """
    for told in answer["commands"]:
        runs = told["runs"]
        if not runs:
            continue
        used, why = told["runtime_cpu_seconds"], told["untold"]
        runtime = (
            f"{span}{_time(used / runs)} of the runtime's"
            if used is not None
            else f"the runtime's unknown: {why}"
        )
        click.echo(
            f"\n{told['pod']}: {runs} commands; one took {_time(told['seconds'] / runs)}, "
            f"CPU {_time(told['cpu_seconds'] / runs)} of this agent's, {runtime}"
        )
        for probe in answer["probes"]:
            if probe["pod_uid"] == told["pod_uid"] and probe["cheaper"]:
                click.echo(f"  {probe['container']} {probe['type']}: {probe['cheaper']} would ask the same")


def _since(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cost of commands between two samples, for pods with the same sandbox in both."""
    earlier = {(told["pod_uid"], told["sandbox"]): told for told in before}
    found = []
    for told in after:
        # A new sandbox has new cgroups, whose counters begin at zero.
        old = earlier.get((told["pod_uid"], told["sandbox"]))
        if old is not None:
            grown = {name: told[name] - old[name] for name in ("runs", "seconds", "cpu_seconds")}
            used, had = told["runtime_cpu_seconds"], old["runtime_cpu_seconds"]
            if used is not None and had is not None:
                grown["runtime_cpu_seconds"] = used - had
            found.append(told | grown)
    return found


def _time(seconds: float) -> str:
    if seconds == 0:
        return "-"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
