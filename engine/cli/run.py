"""Implement `kubengine run`: run the node agent."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from engine.cli.agent.paths import ROOT_DIR
from engine.cli.agent.start_up import lean_imports

LEVELS = ["debug", "info", "warning", "error"]


@click.command()
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="KubeletConfiguration or KubengineConfiguration, YAML or JSON; may be given more than once.",
)
@click.option(
    "--manifests",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True),
    help="Directory (or file) of Pod manifests.  [default: staticPodPath]",
)
@click.option(
    "--runtime",
    metavar="embedded|hollow|unix:///PATH",
    help="The CRI runtime: our own with real containers, our own with none, or a socket.  "
    "[default: containerRuntimeEndpoint; without a KubeletConfiguration embedded, or hollow without root]",
)
@click.option(
    "--root-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=ROOT_DIR,
    show_default=True,
    help="State of the node: pods' volumes, checkpoints and the agent's socket.",
)
@click.option("--pod-logs-dir", metavar="DIR", help="Containers' log files.  [default: podLogsDir]")
@click.option("--cgroup-root", metavar="PATH", help="Parent of the pods' cgroups.  [default: cgroupRoot]")
@click.option(
    "--kubeconfig",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Join this cluster: the Node object, its lease, status and events are kept at its API server.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="The node's own port: TLS, for authenticated users; 0 is none.  "
    "[default: port, with --kubeconfig; without it none]",
)
@click.option("--node-name", metavar="NAME", help="[default: the host name]")
@click.option("--live", is_flag=True, help="On a terminal show the pods instead of a log.")
@click.option("--clean-up", is_flag=True, help="On Ctrl-C end and remove every pod.  [default: leave them]")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    help="[default: info; debug with a logging.verbosity of 4 or more]",
)
def command(
    configs: tuple[Path, ...],
    manifests: Path | None,
    runtime: str | None,
    root_dir: Path,
    pod_logs_dir: str | None,
    cgroup_root: str | None,
    kubeconfig: Path | None,
    port: int | None,
    node_name: str | None,
    live: bool,
    clean_up: bool,
    log_level: str | None,
) -> None:
    """Run the node agent on a directory of Pod manifests.

    SIGTERM stops the agent and leaves its pods running, to be adopted by the next one.
    """
    with lean_imports():
        import asyncio

        import msgspec

        from engine.api.documents import load_config
        from engine.cli.agent.logging import begin_logging
        from engine.cli.agent.process import AgentOptions, AgentProcess

    config, kubengine_config = load_config(list(configs))
    flags = {
        "static_pod_path": str(manifests.absolute()) if manifests is not None else None,
        "pod_logs_dir": str(Path(pod_logs_dir).absolute()) if pod_logs_dir is not None else None,
        "cgroup_root": cgroup_root,
    }
    config = msgspec.structs.replace(
        config, **{name: value for name, value in flags.items() if value is not None}
    )
    # Constructed before the log begins: a wrong value ends here with one line, not with a log.
    process = AgentProcess(
        AgentOptions(
            config=config,
            kubengine_config=kubengine_config,
            runtime=runtime or config.container_runtime_endpoint or None,
            root_dir=root_dir.absolute(),
            node_name=node_name,
            kubeconfig=kubeconfig.absolute() if kubeconfig is not None else None,
            clean_up=clean_up,
            port=port,
        )
    )
    level = getattr(logging, log_level.upper()) if log_level is not None else None
    if not live or not sys.stdout.isatty():
        begin_logging(config.logging, level)
        asyncio.run(process.run())
        return
    from engine.cli.output.live_view import LiveView

    view = LiveView(leave="Ctrl-C removes the pods and ends" if clean_up else "Ctrl-C ends, pods stay")
    begin_logging(config.logging, max(level or logging.INFO, logging.INFO), view)
    asyncio.run(process.run(view.show))
