"""Implement `kubengine plan history`: read recorded use from Prometheus or tables into a file."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import click

from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.cli.plan import report_faults
from engine.cli.plan_options import key_values
from engine.plan.history.history import History
from engine.plan.history.history_file import SUFFIX, write_history
from engine.plan.reading.progress import progress
from engine.plan.snapshot.faults import FaultLog

EPILOG = "Example: kubengine plan history --prometheus http://localhost:9090 --days 14 -o use.arrow"


def _access_options(function: Any) -> Any:
    for option in reversed(
        (
            click.option(
                "--prometheus",
                default="",
                metavar="URL",
                help="http://HOST:PORT, and its path if it has one.",
            ),
            click.option(
                "--bearer-token-file",
                default="",
                metavar="FILE",
                help="Sent as a bearer token.",
            ),
            click.option("--username", default="", help="For basic authentication."),
            click.option("--password-file", default="", metavar="FILE", help="The password of --username."),
            click.option("--ca-file", default="", metavar="FILE", help="CA of the server's certificate."),
            click.option("--cert-file", default="", metavar="FILE", help="Client certificate."),
            click.option("--key-file", default="", metavar="FILE", help="Key of the client certificate."),
            click.option("--insecure", is_flag=True, help="Do not verify the server's certificate."),
            click.option(
                "--header",
                multiple=True,
                metavar="NAME=VALUE",
                help="Sent with each query.",
            ),
        )
    ):
        function = option(function)
    return function


@click.command(epilog=EPILOG)
@_access_options
@click.option("--days", type=click.FloatRange(0, 400, min_open=True), default=7.0, show_default=True)
@click.option(
    "--until",
    default="",
    metavar="TIME",
    help="End of the history: 2026-01-31T12:00:00Z or Unix seconds; default: now.",
)
@click.option("--step", default="5m", show_default=True, help="Time from one kept value to the next.")
@click.option(
    "--match",
    default="",
    metavar="MATCHERS",
    help='Added to each selector: \'cluster="prod",namespace!="test"\'.',
)
@click.option(
    "--max-samples",
    type=click.IntRange(1000),
    default=2_000_000,
    show_default=True,
    help="Most samples of a query.",
)
@click.option(
    "--max-series",
    type=click.IntRange(1),
    default=5_000_000,
    show_default=True,
    help="Most series of all queries together.",
)
@click.option(
    "--max-time",
    default="30m",
    show_default=True,
    help="Time for all queries; after it, the oldest values are left out.",
)
@click.option("--timeout", default="60s", show_default=True, help="Time for a query.")
@click.option("--table", "tables", multiple=True, metavar="FILE", help="CSV or Parquet instead of a server.")
@click.option("--strict", is_flag=True, help="Refuse a history with a fault instead of counting it.")
@click.option("--quiet", is_flag=True, help="No progress bar and no list of faults.")
@click.option("-o", "--output", default="", help=f"The file ({SUFFIX}).")
def history(**options: Any) -> None:
    """Read the recorded use of containers and nodes, for rightsize.

    Queries the API of Prometheus, Thanos, Mimir or VictoriaMetrics for the kubelets' cAdvisor series:
    memory (the largest of each step), CPU (the mean), OOM kills, and the use and stall of nodes. Or reads
    tables with the columns time, namespace, pod, container, memory (bytes) and cpu (cores).

    Gaps, copies of series, clocks that are apart and pieces that the server refuses are reported; the
    rest is kept.
    """
    if bool(options["prometheus"]) == bool(options["tables"]):
        raise InvalidInput("name a server with --prometheus, or files with --table", subject="history")
    if not options["output"]:
        raise InvalidInput(f"name the file to write: -o use{SUFFIX}", subject="--output")
    faults = FaultLog(strict=options["strict"])
    step = _seconds(options["step"], "--step")
    if not 1 <= step <= 86_400 or step != int(step):
        raise InvalidInput(f"expected whole seconds up to 24h, got {options['step']}", subject="--step")
    read = (
        _from_server(options, int(step), faults)
        if options["prometheus"]
        else _from_tables(options, int(step), faults)
    )
    write_history(read, Path(options["output"]))
    if faults.total and not options["quiet"]:
        report_faults(faults, "in the history")
    times = read.times
    click.echo(
        f"{len(read):,} series, {times.count:,} moments, {times.text(0)} to {times.text(times.count - 1)}, "
        f"in {options['output']}",
        err=True,
    )


def _from_server(options: dict[str, Any], step: int, faults: FaultLog) -> History:
    from engine.plan.history.collect import Collector, ReadingBudget, aligned
    from engine.plan.history.prometheus import Prometheus, ServerAccess

    headers = {name: str(value) for name, value in key_values("header", options["header"]).items()}
    named = ("bearer_token_file", "username", "password_file", "ca_file", "cert_file", "key_file", "insecure")
    access = ServerAccess(options["prometheus"], headers=headers, **{name: options[name] for name in named})
    server = Prometheus(access, timeout=_seconds(options["timeout"], "--timeout"))
    budget = ReadingBudget(
        options["max_samples"], options["max_series"], _seconds(options["max_time"], "--max-time")
    )
    if math.isnan(options["days"]):
        raise InvalidInput("expected a number, got nan", subject="--days")
    times = aligned(_moment(options["until"]), options["days"], step)
    shown = not options["quiet"] and sys.stderr.isatty()
    with progress(f"reading {server.address}", 1.0, shown=shown, unit="questions") as done:
        return Collector(server, times, faults, options["match"], budget).collect(done)


def _from_tables(options: dict[str, Any], step: int, faults: FaultLog) -> History:
    from engine.plan.history.usage_tables import history_from_tables

    return history_from_tables(list(options["tables"]), step, faults)


def _seconds(text: str, option: str) -> float:
    try:
        found = float(Duration.parse(text))
    except InvalidInput as error:
        raise InvalidInput(error.message, subject=option) from None
    if found <= 0:
        raise InvalidInput(f"expected more than 0s, got {text}", subject=option)
    return found


def _moment(text: str) -> float:
    from datetime import datetime

    if not text:
        return time.time()
    try:
        found = (
            float(text) if text.replace(".", "", 1).isdigit() else datetime.fromisoformat(text).timestamp()
        )
    except ValueError:
        raise InvalidInput(
            f"expected Unix seconds or 2026-01-31T12:00:00Z, got {text!r}", subject="--until"
        ) from None
    if not 0 < found < 2**33:
        raise InvalidInput(f"{text} is out of range", subject="--until")
    return found


COMMANDS: dict[str, click.Command] = {"history": history}
