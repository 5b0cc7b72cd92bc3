"""Builds CRI sandbox and container configurations as a kubelet does: names, labels, paths. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

import msgspec

from engine._fast.devices.device_checksum import fnv1a
from engine.api.config import KubeletConfiguration
from engine.api.encoding.go_text import go_json
from engine.api.pod import Container, Pod, PodSecurityContext
from engine.api.struct import to_json
from engine.api.validation.sysctls import dotted
from engine.cri import labels
from engine.cri.paths import container_log, pod_log_directory
from engine.node.spec.environment import expand
from engine.node.spec.security import container_security, sandbox_security
from engine.wire import cri_v1_pb2 as cri

_PROTOCOLS = {"TCP": cri.TCP, "UDP": cri.UDP, "SCTP": cri.SCTP}
_PROPAGATION = {
    None: cri.PROPAGATION_PRIVATE,
    "None": cri.PROPAGATION_PRIVATE,
    "HostToContainer": cri.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": cri.PROPAGATION_BIDIRECTIONAL,
}


class ContainerInputs(msgspec.Struct):
    """Hold the inputs of a container's configuration besides its spec."""

    attempt: int
    image: str
    image_uid: int | None
    image_username: str
    environment: Mapping[str, str]
    mounts: Sequence[cri.Mount]
    resources: cri.LinuxContainerResources | None
    seccomp_root: Path
    users: cri.UserNamespace | None = None
    target_id: str = ""
    devices: Sequence[cri.Device] = ()
    cdi_devices: Sequence[cri.CDIDevice] = ()
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)


def pod_labels(pod: Pod) -> dict[str, str]:
    meta = pod.metadata
    return {
        labels.POD_NAME: meta.name,
        labels.POD_NAMESPACE: meta.namespace,
        labels.POD_UID: meta.uid,
    }


def sandbox_config(
    pod: Pod,
    *,
    attempt: int,
    config: KubeletConfiguration,
    cgroup_parent: str,
    dns: cri.DNSConfig,
    hostname: str,
    overhead: cri.LinuxContainerResources,
    resources: cri.LinuxContainerResources,
    users: cri.UserNamespace | None = None,
) -> cri.PodSandboxConfig:
    """Build the sandbox configuration of a pod.

    `attempt` counts the sandboxes of this pod from 0; `resources` is the sum of its containers, `overhead`
    comes on top; `users` is its user namespace.
    """
    meta = pod.metadata
    context = pod.spec.security_context or PodSecurityContext()
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(
            name=meta.name, uid=meta.uid, namespace=meta.namespace, attempt=attempt
        ),
        hostname=hostname,
        log_directory=str(pod_log_directory(Path(config.pod_logs_dir), pod)),
        dns_config=dns,
        port_mappings=_port_mappings(pod),
        labels={**(meta.labels or {}), **pod_labels(pod)},
        annotations=meta.annotations or {},
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=cgroup_parent,
            security_context=sandbox_security(pod, users),
            sysctls={dotted(sysctl.name): sysctl.value for sysctl in context.sysctls or []},
            overhead=overhead,
            resources=resources,
        ),
    )


def _port_mappings(pod: Pod) -> list[cri.PortMapping]:
    """Return the port mappings of containers and sidecars; a port that a container lists twice
    counts once.
    """
    mappings = []
    for container in (*(c for c in pod.init_containers if c.is_sidecar), *pod.spec.containers):
        ports = {
            port.name or (port.protocol, port.host_ip, port.container_port, port.host_port): port
            for port in reversed(container.ports or [])
        }
        mappings += [
            cri.PortMapping(
                protocol=_PROTOCOLS[port.protocol],
                container_port=port.container_port,
                host_port=port.host_port,
                host_ip=port.host_ip,
            )
            for port in reversed(ports.values())
        ]
    return mappings


def container_config(
    pod: Pod, container: Container, inputs: ContainerInputs, config: KubeletConfiguration
) -> cri.ContainerConfig:
    """Build the configuration of one container."""
    variables = inputs.environment
    security = container_security(
        pod,
        container,
        image_uid=inputs.image_uid,
        image_username=inputs.image_username,
        seccomp_root=inputs.seccomp_root,
        seccomp_default=config.seccomp_default,
        users=inputs.users,
        target_id=inputs.target_id,
    )
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=container.name, attempt=inputs.attempt),
        image=cri.ImageSpec(image=inputs.image, user_specified_image=container.image),
        command=[expand(word, variables) for word in container.command or []],
        args=[expand(word, variables) for word in container.args or []],
        working_dir=container.working_dir,
        envs=[
            cri.KeyValue(key=name, value=value.encode(errors="surrogateescape"))
            for name, value in variables.items()
        ],
        mounts=[_mapped(mount, inputs.users) for mount in inputs.mounts],
        devices=inputs.devices,
        CDI_devices=inputs.cdi_devices,
        labels={**pod_labels(pod), labels.CONTAINER_NAME: container.name},
        annotations={**inputs.annotations, **_annotations(pod, container, inputs.attempt)},
        log_path=container_log(container.name, inputs.attempt),
        stdin=container.stdin,
        stdin_once=container.stdin_once,
        tty=container.tty,
        stop_signal=_stop_signal(container),
        linux=cri.LinuxContainerConfig(resources=inputs.resources, security_context=security),
    )


def _stop_signal(container: Container) -> cri.Signal:
    """Return the stop signal, or the default; SIGRTMIN+1 is called SIGRTMINPLUS1 in CRI."""
    given = container.lifecycle.stop_signal if container.lifecycle is not None else None
    if given is None:
        return cri.RUNTIME_DEFAULT
    name = given.replace("+", "PLUS").replace("-", "MINUS")
    return cast("cri.Signal", cri.Signal.Value(name))


def stop_signal_name(signal: int) -> str | None:
    """Return the API's name of a value of CRI's Signal, or None for the default and for unknown values."""
    known = cri.Signal.DESCRIPTOR.values_by_number.get(signal)
    if known is None or signal == cri.RUNTIME_DEFAULT:
        return None
    return known.name.replace("PLUS", "+").replace("MINUS", "-")


def _annotations(pod: Pod, container: Container, attempt: int) -> dict[str, str]:
    annotations = {
        labels.HASH: container_hash(container),
        labels.RESTART_COUNT: str(attempt),
        labels.MESSAGE_PATH: container.termination_message_path,
        labels.MESSAGE_POLICY: container.termination_message_policy,
    }
    if pod.spec.termination_grace_period_seconds is not None:
        annotations[labels.POD_GRACE] = str(pod.spec.termination_grace_period_seconds)
    if container.lifecycle is not None and container.lifecycle.pre_stop is not None:
        annotations[labels.PRE_STOP] = to_json(container.lifecycle.pre_stop).decode()
    if container.ports:
        annotations[labels.PORTS] = to_json(container.ports).decode()
    return annotations


def _mapped(mount: cri.Mount, users: cri.UserNamespace | None) -> cri.Mount:
    """Return the mount with the id mapping of the pod's user namespace."""
    if users is None:
        return mount
    mapped = cri.Mount(uidMappings=users.uids, gidMappings=users.gids)
    mapped.MergeFrom(mount)
    return mapped


def mount(
    container_path: str,
    host_path: Path,
    *,
    read_only: bool = False,
    recursive: bool = False,
    propagation: str | None = None,
    relabel: bool = False,
) -> cri.Mount:
    """Build the mount of a host path; `relabel` lets the runtime give the files the container's label."""
    return cri.Mount(
        container_path=absolute_path(container_path),
        host_path=str(host_path),
        readonly=read_only,
        recursive_read_only=recursive,
        propagation=_PROPAGATION[propagation],
        selinux_relabel=relabel,
    )


def image_mount(container_path: str, reference: str, image: str, sub_path: str) -> cri.Mount:
    """Build the mount of an image volume: `reference` as in the manifest, `image` as in the runtime.

    `sub_path` is a directory in the image, '' for the whole image.
    """
    return cri.Mount(
        container_path=absolute_path(container_path),
        readonly=True,
        image=cri.ImageSpec(image=image, user_specified_image=reference),
        image_sub_path=sub_path,
    )


def absolute_path(container_path: str) -> str:
    """Make a relative path absolute from the container's root; an absolute one is unchanged."""
    return container_path if container_path.startswith("/") else os.path.normpath(f"/{container_path}")


def container_hash(container: Container) -> str:
    """Compute the 32-bit FNV-1a hash of name and image, in lower-case hexadecimal without padding."""
    return _hash(container.name, container.image)


@lru_cache(4096)
def _hash(name: str, image: str) -> str:
    """Compute the hash; cached, because each sync of a running container compares it."""
    picked = {"image": image, "name": name}
    # Equal to the kubelet's to the bit, since a takeover would restart every container otherwise: the kubelet
    # hashes what its dump of Go values prints for the bytes of the JSON, which escapes HTML.
    printed = f"([]uint8)[{' '.join(map(str, go_json(picked)))}]"
    return f"{fnv1a(printed.encode()):x}"
