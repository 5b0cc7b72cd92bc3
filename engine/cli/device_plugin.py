"""Implement `kubengine device-plugin`: a sample device plugin for trying out the agent or a kubelet."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--resource", required=True, help="Resource name, for example example.com/gpu.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(0), help="How many devices.")
@click.option(
    "--numa", default=0, show_default=True, type=click.IntRange(0), help="Spread over NUMA nodes; 0: none."
)
@click.option(
    "--plugin-dir",
    default="/var/lib/kubelet/device-plugins",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The agent's device plugin directory.",
)
@click.option("--prefer", multiple=True, metavar="ID", help="Prefer these devices, in this order.")
@click.option("--pre-start", is_flag=True, help="Ask to be called before containers start.")
@click.option("--cdi", is_flag=True, help="Answer with CDI device names.")
@click.option(
    "--host-device", default="/dev/null", show_default=True, help="Device node that containers get."
)
@click.option("--mount", type=click.Path(path_type=Path, exists=True), help="Directory that containers get.")
@click.option(
    "--fault", "faults", multiple=True, help="Fail on purpose, for example allocate-fails. Repeatable."
)
def command(
    resource: str,
    count: int,
    numa: int,
    plugin_dir: Path,
    prefer: tuple[str, ...],
    pre_start: bool,
    cdi: bool,
    host_device: str,
    mount: Path | None,
    faults: tuple[str, ...],
) -> None:
    """Serve a sample device plugin until interrupted.

    It registers with the agent, and again whenever the agent restarts. Each container gets a variable with
    the ids of its devices (EXAMPLE_COM_GPU), a node /dev/ID per device, and an annotation.
    """
    import asyncio
    import signal

    from engine.api.resources import is_extended
    from engine.testing.device_plugin import DevicePluginFault, SampleAllocation, SampleDevicePlugin

    if not is_extended(resource):
        raise click.BadParameter(
            f"the ResourceName {resource!r} is invalid; expected domain/name, such as example.com/gpu",
            param_hint="--resource",
        )
    try:
        chosen = [DevicePluginFault(fault) for fault in faults]
    except ValueError as error:
        known = ", ".join(DevicePluginFault)
        raise click.BadParameter(f"{error}; known are {known}", param_hint="--fault") from error

    async def serve() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        plugin = SampleDevicePlugin(
            resource,
            plugin_dir / f"{resource.replace('/', '-')}.sock",
            count=count,
            numa=numa,
            allocation=SampleAllocation(
                prefer=prefer or None, pre_start=pre_start, cdi=cdi, host_device=host_device, mount=mount
            ),
            faults=chosen,
        )
        await plugin.start()
        plugin.follow(plugin_dir)
        click.echo(f"{resource}: {count} devices at {plugin.socket}")
        await ended.wait()
        await plugin.stop()

    asyncio.run(serve())
