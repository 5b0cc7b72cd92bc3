"""`kubengine runtime`: the embedded container runtime on a socket, alone."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import click


class _Runtime(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def counts(self) -> Mapping[str, Mapping[str, int]]: ...


@click.command()
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    default=Path("/run/kubengine/runtime.sock"),
    show_default=True,
    help="Unix socket to serve the CRI on.",
)
@click.option("--hollow", is_flag=True, help="Keep states only: no processes, no root needed.")
@click.option("--pod-ip", default="127.0.0.1", show_default=True, help="Every pod's address (hollow only).")
@click.option(
    "--stats-file",
    type=click.Path(path_type=Path),
    help="Write calls and bytes per method here, as JSON, each second and at the end.",
)
def command(socket: Path, hollow: bool, pod_ip: str, stats_file: Path | None) -> None:
    """Serve the Container Runtime Interface from this package's own runtime."""
    from engine.runtime.hollow import HollowRuntime

    if not hollow:
        raise click.UsageError("only --hollow so far")
    asyncio.run(_serve(lambda: HollowRuntime(socket, pod_ip=pod_ip), stats_file))


async def _serve(make: Callable[[], _Runtime], stats_file: Path | None) -> None:
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    runtime = make()
    await runtime.start()
    try:
        while not done.is_set():
            if stats_file is not None:
                _write_stats(stats_file, runtime.counts())
            try:
                await asyncio.wait_for(done.wait(), 1.0 if stats_file is not None else None)
            except TimeoutError:
                continue
    finally:
        await runtime.stop()
        if stats_file is not None:
            _write_stats(stats_file, runtime.counts())


def _write_stats(path: Path, counts: Mapping[str, Mapping[str, int]]) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    partial.rename(path)
