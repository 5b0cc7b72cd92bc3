"""Implement `kubengine kubelet`: start the node agent with the kubelet's command line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.api.encoding.go_bool import FALSE, TRUE
from engine.api.errors import InvalidInput
from engine.cli.agent.paths import ROOT_DIR
from engine.cli.agent.start_up import lean_imports

if TYPE_CHECKING:
    from engine.api.config import KubeletConfiguration
    from engine.node.images.access import CredentialPrograms

EXTERNAL = "external"
CERT_DIR = Path("/var/lib/kubelet/pki")

log = logging.getLogger("kubengine.run")
KUBELET_LABELS = (
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
)
KUBELET_NAMESPACES = ("kubelet.kubernetes.io", "node.kubernetes.io")
KUBERNETES = ("kubernetes.io", "k8s.io")
PROC = Path("/proc/self")
_ARG_START, _ARG_END = 45, 46
"""Positions of arg_start and arg_end behind the command in /proc/PID/stat (proc(5))."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="KubeletConfiguration.")
@click.option("--config-dir", type=click.Path(path_type=Path), metavar="DIR", help="Drop-ins, *.conf.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="Join this cluster.")
@click.option(
    "--bootstrap-kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Get the first client certificate, and the kubeconfig, with this one.",
)
@click.option(
    "--cert-dir", type=click.Path(path_type=Path), metavar="DIR", default=CERT_DIR, show_default=True
)
@click.option(
    "--image-credential-provider-config",
    "provider_config",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Programs that provide registry credentials: their configuration, a file or a directory.",
)
@click.option(
    "--image-credential-provider-bin-dir",
    "provider_directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where these programs are.",
)
@click.option("--root-dir", type=click.Path(path_type=Path), default=ROOT_DIR, show_default=True)
@click.option("--hostname-override", metavar="NAME", help="The node's name.  [default: the host name]")
@click.option("--node-ip", metavar="IP[,IP]", default="", help="The node's address, or one of each family.")
@click.option(
    "--cloud-provider",
    metavar="external",
    default="",
    help="external: a cloud's controller manager initializes the Node and sets its addresses.",
)
@click.option(
    "--node-labels",
    metavar="NAME=VALUE,…",
    multiple=True,
    help="Labels that the node registers with; repeatable.",
)
@click.option(
    "--lock-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Wait until no other agent holds the lock of this file, and hold it.",
)
@click.option(
    "--exit-on-lock-contention",
    "ends_on_contention",
    is_flag=False,
    flag_value="true",
    default="false",
    metavar="[true|false]",
    help="End when another process opens or removes the lock file; pods go on.",
)
@click.option(
    "-v",
    "--v",
    "verbosity",
    metavar="N",
    help="Log verbosity (logging.verbosity); from 4 on with debug messages.",
)
@click.option(
    "--version",
    is_flag=False,
    flag_value="true",
    metavar="[raw]",
    expose_value=False,
    is_eager=True,
    callback=lambda context, _option, value: _print_version(context, value),
    help="Print the kubelet version that this agent implements, and exit.",
)
@click.pass_context
def command(
    context: click.Context,
    config: Path | None,
    config_dir: Path | None,
    kubeconfig: Path | None,
    bootstrap_kubeconfig: Path | None,
    cert_dir: Path,
    provider_config: Path | None,
    provider_directory: Path | None,
    root_dir: Path,
    hostname_override: str | None,
    node_ip: str,
    cloud_provider: str,
    node_labels: tuple[str, ...],
    lock_file: Path | None,
    ends_on_contention: str,
    verbosity: str | None,
) -> None:
    """Run the node agent in a kubelet's place: same flags, same configuration files.

    Accepts every flag of the kubelet v1.36. Flags that set a configuration field override the files. A flag
    without effect here logs a warning, and so does an unknown one, which is ignored.
    """
    with lean_imports():
        import asyncio

        import msgspec

        from engine.api.kubengine_config import KubengineConfiguration
        from engine.cli.agent.kubelet_config import load_kubelet_config
        from engine.cli.agent.kubelet_flags import read_labels
        from engine.cli.agent.logging import begin_logging, hold_logs
        from engine.cli.agent.process import AgentOptions, AgentProcess
        from engine.node.nodeinfo.addresses import parse_node_ips

    # Messages about flags and files come before the format of the log is known, which is in the files.
    hold_logs()
    flags = config_flags(context.args)
    if verbosity is not None:
        flags["v"] = verbosity.removeprefix("=")  # -v=4
    settings = load_kubelet_config(config, config_dir, flags)
    begin_logging(settings.logging)
    ours = KubengineConfiguration()
    if node_labels:
        labels = read_labels(node_labels)
        check_node_labels(labels)
        ours = msgspec.structs.replace(ours, node_labels=labels)
    process = AgentProcess(
        AgentOptions(
            config=settings,
            kubengine_config=ours,
            runtime=settings.container_runtime_endpoint,
            root_dir=root_dir.absolute(),
            node_name=hostname_override,
            kubeconfig=kubeconfig.absolute() if kubeconfig is not None else None,
            bootstrap_kubeconfig=bootstrap_kubeconfig.absolute() if bootstrap_kubeconfig else None,
            cert_dir=cert_dir.absolute(),
            credential_programs=_programs(provider_config, provider_directory, settings),
            node_ips=parse_node_ips(node_ip),
            external_cloud=_is_external(cloud_provider),
            lock_file=lock_file.absolute() if lock_file is not None else None,
            ends_on_contention=_ends_on_contention(ends_on_contention, lock_file),
            clean_up=False,
            port=0 if flags.get("port") == "0" else None,
            as_kubelet=True,
        )
    )
    # Without `kubengine kubelet`, so that scripts find the command line that they know of a kubelet.
    name_process("kubelet", sys.argv[2:])
    asyncio.run(process.run())


def _print_version(context: click.Context, value: str | None) -> None:
    """Print the version as `kubelet --version` does: scripts read the last word."""
    if value in (None, "false"):
        return
    from engine.node.nodeinfo.machine import kubelet_version

    click.echo(f"Kubernetes {kubelet_version()}")
    context.exit()


def config_flags(arguments: list[str]) -> dict[str, str]:
    """Return the value of each flag that sets a configuration field, and warn about the flags without
    effect.

    Flags are read as the kubelet reads them: `--flag=value`, `--flag value`, and `--flag` alone for true.
    Values of a repeated list or map are joined; of any other repeated flag the last value counts.
    """
    from engine.cli.agent.kubelet_flags import FIELDS, JOINED, NOT_NEEDED, SWITCHES, WITHOUT_EFFECT

    flags: dict[str, str] = {}
    left = list(arguments)
    while left:
        argument = left.pop(0)
        if not argument.startswith("-"):
            log.warning("%s: not a flag, ignored", argument)
            continue
        name, given, value = argument.lstrip("-").partition("=")
        # The kubelet's flag names are normalized by `WordSepNormalizeFunc`.
        name = name.replace("_", "-")
        if not given:
            bare = name in SWITCHES or not left or left[0].startswith("-")
            value = "true" if bare else left.pop(0)
        if name in FIELDS:
            joined = name in JOINED and name in flags
            flags[name] = f"{flags[name]}{JOINED[name]}{value}" if joined else value
        elif name in NOT_NEEDED:
            log.info("--%s is not needed: %s", name, NOT_NEEDED[name])
        elif name in WITHOUT_EFFECT:
            log.warning("--%s has no effect here; for the kubelet it %s", name, WITHOUT_EFFECT[name])
        else:
            log.warning("--%s: not a flag of the kubelet v1.36, ignored", name)
    return flags


def _ends_on_contention(text: str, lock_file: Path | None) -> bool:
    """Read the flag. Raise InvalidInput if it is no boolean, or if there is no lock file."""
    if text not in TRUE | FALSE:
        raise InvalidInput(f"expected true or false, got {text[:64]!r}", subject="--exit-on-lock-contention")
    if text in TRUE and lock_file is None:
        raise InvalidInput(
            "cannot exit on lock file contention: no lock file specified", subject="--lock-file"
        )
    return text in TRUE


def _is_external(cloud_provider: str) -> bool:
    """Tell whether the cloud provider is external. Raise InvalidInput for one that would have to
    be built in.
    """
    if cloud_provider not in ("", EXTERNAL):
        text = (
            f'cloud provider "{cloud_provider}" was specified, but built-in cloud providers are disabled. '
            "Please set --cloud-provider=external and migrate to an external cloud provider"
        )
        raise InvalidInput(text, subject="--cloud-provider")
    return cloud_provider == EXTERNAL


def _programs(
    config: Path | None, directory: Path | None, settings: KubeletConfiguration
) -> CredentialPrograms | None:
    """Return the programs for registry credentials. Raise InvalidInput unless both flags or
    neither are given.
    """
    if config is None and directory is None:
        return None
    import time

    from engine.node.images.providers import GATE, load_programs

    if config is None or directory is None:
        missing = "config" if config is None else "bin-dir"
        raise InvalidInput(
            "both flags must be given together", subject=f"--image-credential-provider-{missing}"
        )
    tokens = settings.gate(GATE, True)
    return load_programs(config, directory, time.monotonic, tokens=tokens).credentials


def check_node_labels(labels: Mapping[str, str]) -> None:
    """Raise InvalidInput naming the labels for which the API server would refuse the Node."""
    from engine.api.resources import is_qualified_name
    from engine.api.validation.names import is_label_value

    refused = sorted(name for name in labels if not _allowed(name))
    if refused:
        raise InvalidInput(
            f"unknown 'kubernetes.io' or 'k8s.io' labels {', '.join(refused)}: there a node may only use "
            f"{', '.join(KUBELET_LABELS)}, and names that end in {' or '.join(KUBELET_NAMESPACES)}",
            subject="--node-labels",
        )
    for name, value in labels.items():
        if not is_qualified_name(name) or not is_label_value(value):
            raise InvalidInput(f"not a label: {name}={value}", subject="--node-labels")


def _allowed(name: str) -> bool:
    namespace = name.partition("/")[0] if "/" in name else ""
    if not _below(namespace, KUBERNETES):
        return True
    return name in KUBELET_LABELS or _below(namespace, KUBELET_NAMESPACES)


def _below(namespace: str, suffixes: tuple[str, ...]) -> bool:
    return any(namespace == suffix or namespace.endswith(f".{suffix}") for suffix in suffixes)


def name_process(name: str, arguments: Sequence[str]) -> None:
    """Make `pgrep`, `pidof` and `ps` show this process as `name` with `arguments`.

    Overwrites the memory that /proc/PID/cmdline shows, whose size stays as it is: longer text is cut off.
    Leaves the process as it is where the kernel forbids this.
    """
    with suppress(OSError, ValueError, IndexError):
        (PROC / "comm").write_text(name)
        # The command in parentheses may itself contain blanks and parentheses.
        fields = (PROC / "stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        size = end - start
        shown = b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in (name, *arguments))
        with (PROC / "mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            # The last byte stays NUL: if it is not, the kernel takes the environment, which follows, for a
            # part of the command line (`get_mm_cmdline` in the kernel's fs/proc/base.c).
            memory.write(shown[: size - 1].ljust(size, b"\0"))
