"""Implement `kubengine runtime`: serve the embedded container runtime on a socket, on its own."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol

import click
from click.core import ParameterSource

from engine.host.files import replace_file

ROOT = Path("/var/lib/kubengine/runtime")
STATE = Path("/run/kubengine/runtime")


class _Runtime(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def purge(self) -> None: ...

    def counts(self) -> Mapping[str, Mapping[str, int]]: ...


_root = click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=ROOT,
    show_default=True,
    help="Directory of images and containers' writable layers.",
)
_state = click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=STATE,
    show_default=True,
    help="Directory of what is running.",
)


@click.group(invoke_without_command=True)
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    default=Path("/run/kubengine/runtime.sock"),
    show_default=True,
    help="Unix socket to serve the CRI on.",
)
@_root
@_state
@click.option("--images-dir", type=click.Path(path_type=Path), help="Image archives that a pull looks in.")
@click.option("--pod-cidr", help="Pods' subnet; by default a free /20 of 10.64.0.0/10.")
@click.option(
    "--streaming-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port on 127.0.0.1 for exec, attach and port-forward; by default a free one.",
)
@click.option(
    "--cgroup-driver",
    type=click.Choice(["cgroupfs", "systemd"]),
    default="cgroupfs",
    show_default=True,
    help="How cgroups are named.",
)
@click.option(
    "--cpu-weight",
    type=click.Choice(["linear", "logarithmic"]),
    default="linear",
    show_default=True,
    help="Formula of cgroup v2 weights (runc before 1.3.2, or later).",
)
@click.option("--clean-up-on-exit", is_flag=True, help="At the end remove every pod, image and file.")
@click.option("--hollow", is_flag=True, help="Keep only states: no processes, no root needed.")
@click.option("--pod-ip", default="127.0.0.1", show_default=True, help="Every pod's address (hollow only).")
@click.option(
    "--stats-file",
    type=click.Path(path_type=Path),
    help="Write calls and bytes per method here, as JSON, each second and at the end.",
)
@click.pass_context
def command(
    context: click.Context,
    socket: Path,
    root: Path,
    state: Path,
    images_dir: Path | None,
    pod_cidr: str | None,
    streaming_port: int,
    cgroup_driver: str,
    cpu_weight: Literal["linear", "logarithmic"],
    clean_up_on_exit: bool,
    hollow: bool,
    pod_ip: str,
    stats_file: Path | None,
) -> None:
    """Serve the Container Runtime Interface from this package's own runtime.

    It is for development, tests and demos; use containerd or CRI-O in production. SIGTERM and Ctrl-C leave
    the containers running for the next start, unless --clean-up-on-exit is given.
    """
    if context.invoked_subcommand is not None:
        context.obj = _given(context)
        return

    def make() -> _Runtime:
        if hollow:
            from engine.runtime.hollow import HollowRuntime

            return HollowRuntime(socket, pod_ip=pod_ip)
        from engine.runtime.embedded import EmbeddedRuntime, RuntimeNetwork
        from engine.runtime.processes import RuntimeCgroups

        return EmbeddedRuntime(
            socket=socket,
            root=root,
            state=state,
            cgroups=RuntimeCgroups(cgroup_driver, cpu_weight=cpu_weight),
            network=RuntimeNetwork(pod_cidr, streaming_port),
            archives=images_dir,
        )

    asyncio.run(_serve(make, stats_file, clean_up_on_exit))


@command.command("import")
@click.argument("archives", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@_root
@click.pass_context
def import_(context: click.Context, archives: tuple[Path, ...], root: Path) -> None:
    """Import image archives (docker save, OCI layout). A runtime may be using the directory."""
    from engine.runtime.images.store import ImageStore

    store = ImageStore(_chosen(context, "root", root))
    for archive in archives:
        for image in store.import_archive(archive):
            click.echo(f"{image.id}  {' '.join(image.tags)}")


@command.command()
@_root
@_state
@click.pass_context
def purge(context: click.Context, root: Path, state: Path) -> None:
    """Remove everything: processes, cgroups, networks, images and files. The runtime must be stopped."""
    from engine.runtime.embedded import EmbeddedRuntime

    root, state = _chosen(context, "root", root), _chosen(context, "state", state)
    runtime = EmbeddedRuntime(socket=state / "purge.sock", root=root, state=state)
    asyncio.run(runtime.purge())


def _given(context: click.Context) -> dict[str, Path]:
    """Return the options given before the subcommand. Raise UsageError for one that the subcommand does not
    use.
    """
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    useless = given.keys() - {"root", "state"}
    if useless:
        option = "--" + min(useless).replace("_", "-")
        raise click.UsageError(f"{option} has no effect on {context.invoked_subcommand!r}", context)
    return given


def _chosen(context: click.Context, name: str, value: Path) -> Path:
    """Return the directory given after the subcommand, else the one before it, else its default."""
    if context.get_parameter_source(name) is ParameterSource.DEFAULT:
        given: dict[str, Path] = context.obj
        return given.get(name, value)
    return value


async def _serve(make: Callable[[], _Runtime], stats_file: Path | None, clean_up: bool) -> None:
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    # Made inside of the running loop, which its servers belong to.
    runtime = make()
    await runtime.start()
    try:
        while not done.is_set():
            if stats_file is not None:
                _write_stats(stats_file, runtime.counts())
            try:
                async with asyncio.timeout(1.0 if stats_file is not None else None):
                    await done.wait()
            except TimeoutError:
                continue
    finally:
        await (runtime.purge() if clean_up else runtime.stop())
        if stats_file is not None:
            _write_stats(stats_file, runtime.counts())


def _write_stats(path: Path, counts: Mapping[str, Mapping[str, int]]) -> None:
    replace_file(path, json.dumps(counts, indent=1, sort_keys=True) + "\n")
