"""Build the shims' requests: CRI configurations and image configurations as plain dictionaries.

Pure: nothing here touches the system, except that the host's own hosts and resolv.conf files are read.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.api.errors import InvalidInput
from engine.api.quantity import decimal
from engine.runtime import seccomp
from engine.runtime.images.store import DEFAULT_PATH, StoredImage
from engine.runtime.objects.failures import Unsupported
from engine.runtime.objects.records import RuntimeContainer, Sandbox
from engine.runtime.shim.identity import CAPABILITIES
from engine.wire import cri_v1_pb2 as cri

DEFAULT_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
    "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
)  # fmt: skip
EXEC_LIMIT = 7 * 1024 * 1024


def namespaces(sandbox: Sandbox) -> cri.NamespaceOption:
    return sandbox.config.linux.security_context.namespace_options


def host_network(sandbox: Sandbox) -> bool:
    return namespaces(sandbox).network == cri.NODE


def check_sandbox(sandbox: Sandbox) -> None:
    """Raise Unsupported or InvalidInput for what no shim can do."""
    options = namespaces(sandbox)
    subject = f"sandbox {sandbox.config.metadata.name!r}"
    check_user_namespace(options, subject)
    for key in sandbox.config.linux.sysctls:
        if options.network == cri.NODE and key.startswith("net."):
            raise InvalidInput(f"sysctl {key} needs a network of the pod's own", subject=subject)
        if options.ipc == cri.NODE and key.startswith(
            ("kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")
        ):
            raise InvalidInput(f"sysctl {key} needs an IPC namespace of the pod's own", subject=subject)
    for mapping in sandbox.config.port_mappings:
        if mapping.host_port and mapping.protocol != cri.TCP:
            raise Unsupported(f"host port {mapping.host_port}: only TCP is forwarded", subject=subject)


def check_user_namespace(options: cri.NamespaceOption, subject: str) -> None:
    """Raise Unsupported for a user namespace other than the node's."""
    if options.HasField("userns_options") and options.userns_options.mode != cri.NODE:
        reason = "user namespaces are not supported: hostUsers must be true"
        raise Unsupported(reason, subject=subject)


def hostname(sandbox: Sandbox) -> str:
    if host_network(sandbox):
        return os.uname().nodename
    return sandbox.config.hostname or sandbox.config.metadata.name[:63]


def sandbox_request(
    sandbox: Sandbox, directory: Path, cgroups: Sequence[str], network: Sequence[Any] | None
) -> dict[str, Any]:
    options = namespaces(sandbox)
    return {
        "role": "sandbox",
        "directory": str(directory),
        "host_network": network is None,
        "host_pid": options.pid == cri.NODE,
        "host_ipc": options.ipc == cri.NODE,
        "hostname": hostname(sandbox),
        "sysctls": dict(sandbox.config.linux.sysctls),
        "cgroups": list(cgroups),
        "seccomp": seccomp.sandbox_filter(sandbox.config.linux.security_context).hex(),
        "network": network,
        "forwards": [
            (mapping.host_ip or "0.0.0.0", mapping.host_port, sandbox.ips[0], mapping.container_port)
            for mapping in sandbox.config.port_mappings
            if mapping.host_port and network
        ],
    }


def container_request(
    container: RuntimeContainer,
    image: StoredImage,
    *,
    config: cri.ContainerConfig,
    directory: Path,
    rootfs: Mapping[str, Any],
    cgroups: Sequence[str],
    cgroup_views: Sequence[tuple[str, str]],
    cgroup2: bool,
    etc: Path,
    image_volumes: Mapping[str, str],
    target: RuntimeContainer | None,
) -> dict[str, Any]:
    """Build a container's request; `config` is the container's with its CDI devices' edits, `etc` holds the
    sandbox's files for /etc.
    """
    sandbox = container.sandbox
    security = config.linux.security_context
    check_user_namespace(security.namespace_options, f"container {config.metadata.name!r}")
    keep = capabilities(security)
    return {
        "role": "container",
        "directory": str(directory),
        "log_path": container.log_path,
        "tty": config.tty,
        "stdin": config.stdin,
        "stdin_once": config.stdin_once,
        "args": arguments(config, image.config),
        "env": environment(config, image.config, hostname(sandbox)),
        "cwd": config.working_dir or image.config.get("WorkingDir") or "/",
        "pause": sandbox.pid,
        "pause_start_time": sandbox.start_time,
        "pid_namespace": _pid_namespace(security.namespace_options),
        "target": target.pid if target else 0,
        "target_start_time": target.start_time if target else 0,
        "host_ipc": namespaces(sandbox).ipc == cri.NODE,
        "cgroups": list(cgroups),
        "cgroup_mounts": list(cgroup_views),
        "cgroup2": cgroup2,
        "oom_score_adj": config.linux.resources.oom_score_adj,
        "rootfs": dict(rootfs),
        "mounts": mounts(config, etc, image_volumes),
        "devices": [
            {"host": d.host_path, "container": d.container_path, "permissions": d.permissions}
            for d in config.devices
        ],
        "privileged": security.privileged,
        "masked_paths": [] if security.privileged else list(security.masked_paths),
        "readonly_paths": [] if security.privileged else list(security.readonly_paths),
        "readonly_rootfs": security.readonly_rootfs,
        "user": user(security, image.config),
        "capabilities": sorted(keep),
        "ambient": sorted(_names(security.capabilities.add_ambient_capabilities)),
        "no_new_privs": security.no_new_privs and not security.privileged,
        "seccomp": seccomp.filter_program(security, keep).hex(),
    }


def command_request(
    container: RuntimeContainer,
    request: Mapping[str, Any],
    command: Sequence[str],
    stream: Mapping[str, bool] | None = None,
) -> dict[str, Any]:
    """Build the request to run `command` in `container`, as `request` (its `container_request`) configured
    it.

    With `stream` (`stdin`, `tty`) its streams are copied while it runs, otherwise its output is sent at the
    end.
    """
    linux = container.user.linux if container.user else cri.LinuxContainerUser()
    terminal = {"TERM": "xterm"} if stream and stream["tty"] else {}
    return {
        **{key: request[key] for key in ("cwd", "cgroups", "oom_score_adj", "capabilities", "ambient")},
        "env": {**request["env"], **terminal},
        "stream": dict(stream) if stream else None,
        "no_new_privs": request["no_new_privs"],
        "seccomp": request["seccomp"],
        "role": "command",
        "pid": container.pid,
        "start_time": container.start_time,
        "identity": (linux.uid, linux.gid, list(linux.supplemental_groups)),
        "args": list(command),
        "limit": EXEC_LIMIT,
    }


def arguments(config: cri.ContainerConfig, image: Mapping[str, Any]) -> list[str]:
    """Return the arguments: the pod's command replaces the image's entry point and its arguments; args
    replace only the arguments.
    """
    entrypoint, args = list(config.command), list(config.args)
    if not entrypoint:
        entrypoint = list(image.get("Entrypoint") or [])
        args = args or list(image.get("Cmd") or [])
    whole = entrypoint + args
    if not whole:
        raise InvalidInput("no command specified", subject=f"container {config.metadata.name!r}")
    return whole


def environment(config: cri.ContainerConfig, image: Mapping[str, Any], host: str) -> dict[str, str]:
    found = dict([DEFAULT_PATH.split("=", 1)])
    found["HOSTNAME"] = host
    if config.tty:
        found["TERM"] = "xterm"
    for pair in image.get("Env") or []:
        key, _, value = pair.partition("=")
        found[key] = value
    for item in config.envs:
        value = item.value
        found[item.key] = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    return found


def mounts(config: cri.ContainerConfig, etc: Path, image_volumes: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the pod's files under /etc and the wanted mounts, outer ones first."""
    found = []
    privileged = config.linux.security_context.privileged
    taken = {_clean(mount.container_path) for mount in config.mounts}
    for name in ("hosts", "resolv.conf", "hostname"):
        if f"/etc/{name}" not in taken:
            found.append(
                _mount(str(etc / name), f"/etc/{name}", config.linux.security_context.readonly_rootfs)
            )
    for mount in sorted(config.mounts, key=lambda m: _clean(m.container_path).count("/")):
        source = image_volumes.get(mount.container_path) or mount.host_path
        subject = f"mount {mount.container_path}"
        if not source:
            raise InvalidInput("expected a host path or an image", subject=subject)
        if mount.image.image and not mount.readonly:
            raise InvalidInput("an image volume must be read-only", subject=subject)
        if mount.propagation == cri.PROPAGATION_BIDIRECTIONAL and not privileged:
            raise InvalidInput("bidirectional propagation needs a privileged container", subject=subject)
        if mount.recursive_read_only and not mount.readonly:
            raise InvalidInput("recursive_read_only needs readonly", subject=subject)
        if mount.recursive_read_only and mount.propagation != cri.PROPAGATION_PRIVATE:
            raise InvalidInput("recursive_read_only needs private propagation", subject=subject)
        found.append(
            {
                **_mount(source, _clean(mount.container_path), mount.readonly),
                "propagation": int(mount.propagation),
                "recursive_readonly": mount.recursive_read_only,
            }
        )
    return found


def capabilities(security: cri.LinuxContainerSecurityContext) -> set[str]:
    """Return the names, without CAP_, that the container keeps. Raise InvalidInput for an unknown one."""
    if security.privileged:
        return set(CAPABILITIES)
    added = {name.upper() for name in security.capabilities.add_capabilities}
    dropped = {name.upper() for name in security.capabilities.drop_capabilities}
    kept = set(CAPABILITIES) if "ALL" in added else set(DEFAULT_CAPABILITIES)
    if "ALL" in dropped:
        kept = set(CAPABILITIES) if "ALL" in added else set()
    kept |= _names(added - {"ALL"})
    return kept - _names(dropped - {"ALL"})


def user(security: cri.LinuxContainerSecurityContext, image: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user in names or numbers: the pod's setting, else the image's."""
    name, _, group = str(image.get("User") or "").partition(":")
    if security.run_as_username:
        name, group = security.run_as_username, ""
    if security.HasField("run_as_user"):
        name, group = str(security.run_as_user.value), ""
    if security.HasField("run_as_group"):
        group = str(security.run_as_group.value)
    return {
        "user": name,
        "group": group,
        "groups": list(security.supplemental_groups),
        "strict": security.supplemental_groups_policy == cri.Strict,
    }


def hosts_file(sandbox: Sandbox) -> str:
    try:
        text = Path("/etc/hosts").read_text()
    except OSError:
        text = "127.0.0.1\tlocalhost\n"
    if sandbox.ips and not host_network(sandbox):
        text += f"{sandbox.ips[0]}\t{hostname(sandbox)}\n"
    return text


def resolv_conf(sandbox: Sandbox) -> str:
    config = sandbox.config
    if not config.HasField("dns_config"):
        try:
            return Path("/etc/resolv.conf").read_text()
        except OSError:
            return ""
    lines = [f"nameserver {server}\n" for server in config.dns_config.servers]
    if config.dns_config.searches:
        lines.insert(0, f"search {' '.join(config.dns_config.searches)}\n")
    if config.dns_config.options:
        lines.append(f"options {' '.join(config.dns_config.options)}\n")
    return "".join(lines)


def _mount(source: str, target: str, readonly: bool) -> dict[str, Any]:
    return {
        "source": source, "target": target, "readonly": readonly,
        "propagation": int(cri.PROPAGATION_PRIVATE), "recursive_readonly": False,
    }  # fmt: skip


def _pid_namespace(options: cri.NamespaceOption) -> str:
    return {cri.POD: "pod", cri.CONTAINER: "new", cri.NODE: "host", cri.TARGET: "target"}[options.pid]


def _clean(path: str) -> str:
    return os.path.normpath(f"/{path.lstrip('/')}")


def _names(wanted: Any) -> set[str]:
    names = {name.upper().removeprefix("CAP_") for name in wanted}
    unknown = names - set(CAPABILITIES) - {"ALL"}
    if unknown:
        raise InvalidInput(f"unknown capability {sorted(unknown)[0]!r}", subject="capabilities")
    return set(CAPABILITIES) if "ALL" in names else names


def stop_signal(config: cri.ContainerConfig, image: dict[str, Any]) -> int:
    """Return the stop signal's number: the pod's setting, else the image's, else SIGTERM."""
    if config.stop_signal:
        name = cri.Signal.Name(config.stop_signal)
    else:
        name = str(image.get("StopSignal") or "SIGTERM").upper()
    if (known := decimal(name)) is not None:
        return known
    base, plus, offset = name.replace("PLUS", "+").replace("MINUS", "-").partition("+")
    if not plus:
        base, plus, offset = base.partition("-")
        offset = f"-{offset}" if plus else "0"
    try:
        number = {"SIGCLD": signal.SIGCHLD, "SIGPOLL": signal.SIGIO}.get(base) or signal.Signals[
            base if base.startswith("SIG") else f"SIG{base}"
        ]
        return int(number) + int(offset)
    except (KeyError, ValueError):
        raise InvalidInput("unknown stop signal", subject=name) from None
