"""Pods and containers as a kubelet describes them to a CRI runtime: names, labels, paths, security.

Pure: messages out, nothing touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.api._base import to_json
from engine.api.config import KubeletConfiguration
from engine.api.pod import Container, Pod, PodSecurityContext, SecurityContext, SecurityProfile
from engine.cri import labels
from engine.node.container_hash import container_hash
from engine.node.environment import expand
from engine.wire import cri_v1_pb2 as cri

MASKED_PATHS = (
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

_PROTOCOLS = {"TCP": cri.TCP, "UDP": cri.UDP, "SCTP": cri.SCTP}
_PROPAGATION = {
    None: cri.PROPAGATION_PRIVATE,
    "None": cri.PROPAGATION_PRIVATE,
    "HostToContainer": cri.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": cri.PROPAGATION_BIDIRECTIONAL,
}


@dataclass(slots=True)
class ContainerInputs:
    """What a container's configuration depends on beside its spec."""

    attempt: int
    image: str
    image_uid: int | None
    image_username: str
    environment: Mapping[str, str]
    mounts: Sequence[cri.Mount]
    resources: cri.LinuxContainerResources | None
    devices: Sequence[cri.Device] = ()
    cdi_devices: Sequence[cri.CDIDevice] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


def pod_log_directory(config: KubeletConfiguration, pod: Pod) -> Path:
    """`/var/log/pods/<namespace>_<name>_<uid>`."""
    meta = pod.metadata
    return Path(config.pod_logs_dir) / f"{meta.namespace}_{meta.name}_{meta.uid}"


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
    overhead: cri.LinuxContainerResources | None = None,
    resources: cri.LinuxContainerResources | None = None,
) -> cri.PodSandboxConfig:
    """The sandbox of a pod. `attempt` counts sandboxes of this pod from 0."""
    meta, spec = pod.metadata, pod.spec
    context = spec.security_context or PodSecurityContext()
    privileged = any(c.security_context and c.security_context.privileged for c in pod.all_containers)
    security = cri.LinuxSandboxSecurityContext(
        namespace_options=namespace_options(pod),
        privileged=privileged,
        seccomp=_profile(context.seccomp_profile, config.seccomp_default),
        supplemental_groups=_groups(context),
        selinux_options=_selinux(context),
    )
    if context.run_as_user is not None:
        security.run_as_user.value = context.run_as_user
    if context.run_as_group is not None:
        security.run_as_group.value = context.run_as_group
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(
            name=meta.name, uid=meta.uid, namespace=meta.namespace, attempt=attempt
        ),
        hostname=hostname,
        log_directory=str(pod_log_directory(config, pod)),
        dns_config=dns,
        port_mappings=_port_mappings(pod),
        labels={**(meta.labels or {}), **pod_labels(pod)},
        annotations=meta.annotations or {},
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=cgroup_parent,
            security_context=security,
            sysctls={sysctl.name: sysctl.value for sysctl in context.sysctls or []},
            overhead=overhead,
            resources=resources,
        ),
    )


def namespace_options(pod: Pod) -> cri.NamespaceOption:
    spec = pod.spec
    pid = cri.POD if spec.share_process_namespace else cri.CONTAINER
    return cri.NamespaceOption(
        network=cri.NODE if spec.host_network else cri.POD,
        pid=cri.NODE if spec.host_pid else pid,
        ipc=cri.NODE if spec.host_ipc else cri.POD,
    )


def _port_mappings(pod: Pod) -> list[cri.PortMapping]:
    return [
        cri.PortMapping(
            protocol=_PROTOCOLS[port.protocol],
            container_port=port.container_port,
            host_port=port.host_port,
            host_ip=port.host_ip,
        )
        for container in pod.all_containers
        for port in container.ports or []
    ]


def container_config(
    pod: Pod, container: Container, inputs: ContainerInputs, config: KubeletConfiguration
) -> cri.ContainerConfig:
    """One container. Its log is `<name>/<attempt>.log` under the pod's log directory."""
    variables = inputs.environment
    linux = cri.LinuxContainerConfig(
        resources=inputs.resources, security_context=_security(pod, container, inputs, config)
    )
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=container.name, attempt=inputs.attempt),
        image=cri.ImageSpec(image=inputs.image, user_specified_image=container.image),
        command=[expand(word, variables) for word in container.command or []],
        args=[expand(word, variables) for word in container.args or []],
        working_dir=container.working_dir,
        envs=[cri.KeyValue(key=name, value=value.encode()) for name, value in variables.items()],
        mounts=inputs.mounts,
        devices=inputs.devices,
        CDI_devices=inputs.cdi_devices,
        labels={**pod_labels(pod), labels.CONTAINER_NAME: container.name},
        annotations={**inputs.annotations, **_annotations(pod, container, inputs.attempt)},
        log_path=f"{container.name}/{inputs.attempt}.log",
        stdin=container.stdin,
        stdin_once=container.stdin_once,
        tty=container.tty,
        linux=linux,
    )


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


def effective_security(pod: Pod, container: Container) -> SecurityContext:
    """The container's own settings over the pod's."""
    of_pod = pod.spec.security_context or PodSecurityContext()
    merged = SecurityContext(
        se_linux_options=of_pod.se_linux_options,
        run_as_user=of_pod.run_as_user,
        run_as_group=of_pod.run_as_group,
        run_as_non_root=of_pod.run_as_non_root,
        seccomp_profile=of_pod.seccomp_profile,
        app_armor_profile=of_pod.app_armor_profile,
    )
    for name in SecurityContext.__struct_fields__:
        value = getattr(container.security_context, name, None)
        if value is not None:
            setattr(merged, name, value)
    return merged


def _security(
    pod: Pod, container: Container, inputs: ContainerInputs, config: KubeletConfiguration
) -> cri.LinuxContainerSecurityContext:
    context = effective_security(pod, container)
    privileged = bool(context.privileged)
    unmasked = privileged or context.proc_mount == "Unmasked"
    message = cri.LinuxContainerSecurityContext(
        privileged=privileged,
        namespace_options=namespace_options(pod),
        readonly_rootfs=bool(context.read_only_root_filesystem),
        no_new_privs=context.allow_privilege_escalation is False,
        supplemental_groups=_groups(pod.spec.security_context or PodSecurityContext()),
        masked_paths=() if unmasked else MASKED_PATHS,
        readonly_paths=() if unmasked else READONLY_PATHS,
        seccomp=cri.SecurityProfile(profile_type=cri.SecurityProfile.Unconfined)
        if privileged
        else _profile(context.seccomp_profile, config.seccomp_default),
        apparmor=_profile(context.app_armor_profile) if context.app_armor_profile is not None else None,
        selinux_options=_selinux(context),
    )
    if context.capabilities is not None:
        message.capabilities.add_capabilities.extend(context.capabilities.add or [])
        message.capabilities.drop_capabilities.extend(context.capabilities.drop or [])
    if context.run_as_user is not None:
        message.run_as_user.value = context.run_as_user
    elif inputs.image_uid is not None:
        message.run_as_user.value = inputs.image_uid
    elif inputs.image_username:
        message.run_as_username = inputs.image_username
    if context.run_as_group is not None:
        message.run_as_group.value = context.run_as_group
    return message


def _groups(context: PodSecurityContext) -> list[int]:
    groups = list(context.supplemental_groups or [])
    if context.fs_group is not None:
        groups.append(context.fs_group)
    return groups


def _profile(profile: SecurityProfile | None, default: bool = False) -> cri.SecurityProfile:
    kinds = cri.SecurityProfile
    if profile is None:
        return cri.SecurityProfile(profile_type=kinds.RuntimeDefault if default else kinds.Unconfined)
    if profile.type == "Localhost":
        return cri.SecurityProfile(
            profile_type=kinds.Localhost, localhost_ref=profile.localhost_profile or ""
        )
    return cri.SecurityProfile(
        profile_type=kinds.RuntimeDefault if profile.type == "RuntimeDefault" else kinds.Unconfined
    )


def _selinux(context: PodSecurityContext | SecurityContext) -> cri.SELinuxOption | None:
    options = context.se_linux_options
    if options is None:
        return None
    return cri.SELinuxOption(user=options.user, role=options.role, type=options.type, level=options.level)


def mount(
    container_path: str, host_path: Path, *, read_only: bool = False, propagation: str | None = None
) -> cri.Mount:
    return cri.Mount(
        container_path=container_path,
        host_path=str(host_path),
        readonly=read_only,
        propagation=_PROPAGATION[propagation],
    )


def image_mount(container_path: str, reference: str, image: str) -> cri.Mount:
    """An image volume: `reference` as the manifest names it, `image` as the runtime does."""
    return cri.Mount(
        container_path=container_path,
        readonly=True,
        image=cri.ImageSpec(image=image, user_specified_image=reference),
    )
