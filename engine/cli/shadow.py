"""Implement `kubengine shadow`: take a live kubelet's decisions a second time, and compare."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import RecordSection
from engine.api.quantity import Quantity
from engine.cli.agent.client import print_json
from engine.cli.agent.kubelet_options import kubelet_options

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from engine.shadow.watch import Shadow, ShadowOptions

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
DIFFERS, NEXT_DIFFERS = 3, 4
MAX_CHANGES = 40
PAGE_RELOAD = 10


@click.command()
@kubelet_options
@click.option(
    "--interval",
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="Time between two readings of the node.",
)
@click.option("--for", "span", default="", metavar="DURATION", help="End after this time, instead of Ctrl-C.")
@click.option("--with", "following", type=_FILE, help="Let this configuration decide next to the live one.")
@click.option(
    "--record",
    default="",
    metavar="DIR",
    help="Write a record to this directory, for `kubengine why` and `kubengine plan replay`; with "
    "--kubeconfig, it has the kubelet's events.",
)
@click.option(
    "--record-size", default="64Mi", show_default=True, metavar="SIZE", help="Largest size of the record."
)
@click.option(
    "--record-age",
    default="168h",
    show_default=True,
    metavar="DURATION",
    help="Age at which entries of the record are removed.",
)
@click.option("--listen", default="", metavar="HOST:PORT", help="Serve the page, /report.json and /metrics.")
@click.option(
    "--html", "page", type=click.Path(dir_okay=False, path_type=Path), help="Write a page at the end."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON at the end.")
def command(
    options: ShadowOptions,
    interval: str,
    span: str,
    following: Path | None,
    record: str,
    record_size: str,
    record_age: str,
    listen: str,
    page: Path | None,
    as_json: bool,
) -> None:
    """Take every decision of a live kubelet a second time, and say where the result differs.

    Only reads: the kubelet, the runtime, its state files and cgroups. Nothing on the node is changed.

    With --with, a second configuration sees the same pods and statistics: which pods it would refuse or
    evict, and which values it would change.

    Exit status: 0 all decisions agree, 1 nothing could be compared, 3 some differ, 4 none does, but the
    second configuration decides otherwise than the live one.
    """
    from engine.shadow.watch import Shadow

    kept = RecordSection(record, _size(record_size), Duration(_seconds(record_age, "--record-age")))
    shadow = Shadow(replace(options, next_config=following, record=kept))
    asyncio.run(_run(shadow, _seconds(interval, "--interval"), _seconds(span, "--for"), listen, as_json))
    report = shadow.describe()
    if page is not None:
        from engine.host.files import replace_file
        from engine.shadow.report import html

        replace_file(page, html(report), mode=0o644)
    if as_json:
        print_json(report)
    else:
        from engine.cli.output.console import table_console

        table_console().print(picture(report))
    if not shadow.pods and shadow.skipped == shadow.observations:
        fault = next(iter(shadow.faults.items()))
        raise click.ClickException(f"the node was never seen: {fault[0]}: {fault[1].text}")
    if report["differed"]:
        raise click.exceptions.Exit(DIFFERS)
    if not report["agreed"]:
        raise click.ClickException("no decision could be compared, so nothing is known about this kubelet")
    if report.get("next", {}).get("changes"):
        raise click.exceptions.Exit(NEXT_DIFFERS)


def _size(text: str) -> Quantity:
    try:
        return Quantity.parse(text)
    except InvalidInput as error:
        raise InvalidInput(error.message, subject="--record-size") from None


def _seconds(text: str, option: str) -> float:
    if not text:
        return 0.0
    try:
        seconds = float(Duration.parse(text))
    except InvalidInput as error:
        raise InvalidInput(error.message, subject=option) from None
    if seconds < 1:
        raise InvalidInput("expected at least 1s", subject=option)
    return seconds


async def _run(shadow: Shadow, interval: float, span: float, listen: str, quiet: bool) -> None:
    """Observe until the time is over or a signal arrives."""
    from rich.live import Live

    from engine.cli.output.console import table_console

    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    if span:
        loop.call_later(span, ended.set)
    server = _server(shadow, listen) if listen else None
    if server is not None:
        await server.start()
    live = Live(console=table_console(), auto_refresh=False, transient=True)
    shown = sys.stdout.isatty() and not quiet
    if shown:
        live.start()
    try:
        while not ended.is_set():
            for difference in await shadow.compare():
                if not shown:
                    click.echo(_line(difference.as_dict()), err=True)
            if shown:
                live.update(picture(shadow.describe()), refresh=True)
            try:
                async with asyncio.timeout(interval):
                    await ended.wait()
            except TimeoutError:
                pass
    finally:
        if shown:
            live.stop()
        if server is not None:
            await server.stop()
        await shadow.close()


def _server(shadow: Shadow, address: str) -> Any:
    from engine.api.encoding.json_text import encode_json
    from engine.metrics import Registry
    from engine.server.metrics_text import CONTENT_TYPE, exposition
    from engine.shadow.page_server import PageServer
    from engine.shadow.report import html, register

    registry = Registry()
    register(registry, shadow.ledger)
    return PageServer(
        address,
        {
            "/": lambda: (
                "text/html; charset=utf-8",
                html(shadow.describe(), refresh=PAGE_RELOAD).encode(),
            ),
            "/report.json": lambda: ("application/json", encode_json(shadow.describe())),
            "/metrics": lambda: (CONTENT_TYPE, "".join(exposition(registry)).encode()),
        },
    )


def _line(difference: dict[str, Any]) -> str:
    return (
        f"{difference['kind']} of {difference['subject']} differs: {difference['ours']} "
        f"({difference['ourReason']}), but the kubelet: {difference['kubelets']} "
        f"({difference['kubeletsReason']})"
    )


def picture(report: dict[str, Any]) -> Group:
    """Draw a report: the kinds, the last differences, and what could not be read."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from engine.shadow.report import kind_rows, verdict, when

    kinds = Table("Decision", "Agreed", "Differed", "Not judged", box=None, pad_edge=False)
    for kind, agreed, differed, not_judged in kind_rows(report):
        kinds.add_row(kind, str(agreed), Text(str(differed), "red" if differed else ""), not_judged)
    style = "red" if report["differed"] else "green"
    lines: list[Table | Text] = [
        Text(
            f"{report['node'] or report['kubelet']}: {report['pods']} pods, "
            f"{report['observations']} observations, {report['skippedObservations']} skipped, "
            f"{report['kubeletRestarts']} restarts of the kubelet"
        ),
        kinds,
        Text(verdict(report), style),
    ]
    lines += [Text(_line(one), "yellow") for one in report["differences"][-10:]]
    lines += [
        Text(f"{source}: {fault['times']} ×, last {when(fault['last'])}: {fault['text']}", "dim")
        for source, fault in report["faults"].items()
    ]
    if "next" in report:
        lines += _next(report)
    return Group(*lines)


def _next(report: dict[str, Any]) -> list[Table | Text]:
    from rich.table import Table
    from rich.text import Text

    from engine.shadow.report import NEXT_HEADS, next_rows

    counts = ", ".join(f"{count} {name}" for name, count in report["next"]["counts"].items())
    title = Text(f"the second configuration decides otherwise: {counts or 'never'}")
    table = Table(*NEXT_HEADS, box=None, pad_edge=False)
    for row in next_rows(report)[:MAX_CHANGES]:
        table.add_row(*row)
    return [title, table] if counts else [title]
