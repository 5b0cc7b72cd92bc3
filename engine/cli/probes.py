"""`kubengine probes`: every probe of a running agent, and what probing costs on this machine."""

from __future__ import annotations

from typing import Any

import click

from engine.cli._agent import Agent, agent_option, json_option, print_json

_STYLE = {"success": "green", "failure": "red", "unknown": "yellow"}


@click.group(invoke_without_command=True)
@click.pass_context
@agent_option
@json_option
@click.option("--pod", metavar="POD", help="Only this pod (namespace/name, name or uid).")
@click.option("--failing", is_flag=True, help="Only probes whose last attempt did not succeed.")
def command(context: click.Context, agent: Agent, as_json: bool, pod: str | None, failing: bool) -> None:
    """Show liveness, readiness and startup probes: state, streak, duration, lateness, next run."""
    if context.invoked_subcommand is not None:
        return
    answer = agent.describe("probes", **({"pod": pod} if pod else {}))
    if failing:
        answer["probes"] = [p for p in answer["probes"] if p["last"] == "failure" or p["result"] == "failure"]
    if as_json:
        print_json(answer)
    else:
        _table(answer)


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
    from dataclasses import asdict

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


def _table(answer: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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
    console = Console()
    console.print(table)
    _commands(answer["probes"])
    loop = answer["loop"]
    connections = f"{loop['open_connections']} of {loop['max_connections']} connections open"
    console.print(
        f"\n{loop['begun']} runs, {loop['late']} late, {connections}, {loop['queued']} waiting, "
        f"{loop['entries_into_python']} entries into Python",
        highlight=False,
    )


def _commands(probes: list[dict[str, Any]]) -> None:
    """What commands in containers cost this agent by pod, and what would ask the same."""
    of_pods: dict[str, list[dict[str, Any]]] = {}
    for probe in probes:
        if probe["kind"] == "exec":
            of_pods.setdefault(probe["pod"], []).append(probe)
    for pod, of_pod in of_pods.items():
        spent = sum(probe["cpu_seconds"] for probe in of_pod)
        runs = sum(sum(probe["outcomes"].values()) for probe in of_pod)
        click.echo(
            f"\n{pod}: {runs} commands for {_time(spent)} of this agent's CPU, and a runtime's exec each"
        )
        for probe in of_pod:
            if probe["cheaper"]:
                click.echo(f"  {probe['container']} {probe['type']}: {probe['cheaper']} would ask the same")


def _time(seconds: float) -> str:
    if seconds == 0:
        return "-"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
