"""Builds the CRI security settings of sandboxes and containers as a kubelet does. Pure.

Source: kubelet v1.36 `kuberuntime` (security_context, helpers, sandbox) and `securitycontext`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput
from engine.api.pod import Container, Pod, PodSecurityContext, SecurityContext, SecurityProfile
from engine.wire import cri_v1_pb2 as cri

MASKED_PATHS: Final = (
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
READONLY_PATHS: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
APPARMOR_ANNOTATION: Final = "container.apparmor.security.beta.kubernetes.io/"


@cache
def masked_paths() -> tuple[str, ...]:
    """Return the common masked paths, and the thermal throttling counters of each CPU that the
    machine exposes.
    """
    throttling = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle"))
    return (*MASKED_PATHS, *map(str, throttling))


def namespace_options(
    pod: Pod, users: cri.UserNamespace | None = None, target_id: str = ""
) -> cri.NamespaceOption:
    """Build the namespace options.

    `users` is the pod's user namespace, None for the host's; `target_id` is the container whose PID
    namespace an ephemeral container joins.
    """
    spec = pod.spec
    pid = cri.POD if spec.share_process_namespace else cri.CONTAINER
    options = cri.NamespaceOption(
        network=cri.NODE if spec.host_network else cri.POD,
        pid=cri.NODE if spec.host_pid else pid,
        ipc=cri.NODE if spec.host_ipc else cri.POD,
        userns_options=users or cri.UserNamespace(mode=cri.NODE),
    )
    if target_id and options.pid == cri.CONTAINER:
        options.pid, options.target_id = cri.TARGET, target_id
    return options


def sandbox_security(pod: Pod, users: cri.UserNamespace | None = None) -> cri.LinuxSandboxSecurityContext:
    """Build the security settings of the sandbox, which always runs under the runtime's default seccomp
    profile.
    """
    context = pod.spec.security_context or PodSecurityContext()
    message = cri.LinuxSandboxSecurityContext(
        namespace_options=namespace_options(pod, users),
        privileged=any(c.security_context and c.security_context.privileged for c in pod.every_container),
        # Not the pod's profile: a strict one need not allow what the pause process calls (Kubernetes issue
        # 84623).
        seccomp=cri.SecurityProfile(profile_type=cri.SecurityProfile.RuntimeDefault),
        supplemental_groups=_groups(context),
        supplemental_groups_policy=_groups_policy(context),
        selinux_options=_selinux(context),
    )
    if context.run_as_user is not None:
        message.run_as_user.value = context.run_as_user
    if context.run_as_group is not None:
        message.run_as_group.value = context.run_as_group
    return message


def effective_security(pod: Pod, container: Container) -> SecurityContext:
    """Merge the container's settings over the pod's."""
    of_pod = pod.spec.security_context or PodSecurityContext()
    merged = SecurityContext(
        se_linux_options=of_pod.se_linux_options,
        run_as_user=of_pod.run_as_user,
        run_as_group=of_pod.run_as_group,
        run_as_non_root=of_pod.run_as_non_root,
        seccomp_profile=of_pod.seccomp_profile,
    )
    for name in SecurityContext.__struct_fields__:
        value = getattr(container.security_context, name, None)
        if value is not None:
            setattr(merged, name, value)
    merged.app_armor_profile = app_armor_profile(pod, container)
    return merged


def container_security(
    pod: Pod,
    container: Container,
    *,
    image_uid: int | None,
    image_username: str,
    seccomp_root: Path,
    seccomp_default: bool,
    users: cri.UserNamespace | None = None,
    target_id: str = "",
) -> cri.LinuxContainerSecurityContext:
    """Build the security settings of a container.

    `seccomp_root` is the directory of Localhost profiles. An image without a user runs as 0. `users` and
    `target_id` are those of `namespace_options`. Raises `InvalidInput` for a Localhost profile without a
    name, or outside of the directory.
    """
    context = effective_security(pod, container)
    of_pod = pod.spec.security_context or PodSecurityContext()
    unmasked = context.proc_mount == "Unmasked"
    message = cri.LinuxContainerSecurityContext(
        privileged=bool(context.privileged),
        namespace_options=namespace_options(pod, users, target_id),
        readonly_rootfs=bool(context.read_only_root_filesystem),
        no_new_privs=context.allow_privilege_escalation is False,
        supplemental_groups=_groups(of_pod),
        supplemental_groups_policy=_groups_policy(of_pod),
        masked_paths=() if unmasked else masked_paths(),
        readonly_paths=() if unmasked else READONLY_PATHS,
        seccomp=_seccomp(context.seccomp_profile, seccomp_root, seccomp_default),
        selinux_options=_selinux(context),
    )
    if context.app_armor_profile is not None:
        _set_app_armor(message, context.app_armor_profile)
    if context.capabilities is not None:
        message.capabilities.add_capabilities.extend(context.capabilities.add or [])
        message.capabilities.drop_capabilities.extend(context.capabilities.drop or [])
    if context.run_as_user is not None:
        message.run_as_user.value = context.run_as_user
    elif image_uid is None and image_username:
        message.run_as_username = image_username
    else:
        message.run_as_user.value = image_uid or 0
    if context.run_as_group is not None:
        message.run_as_group.value = context.run_as_group
    return message


def app_armor_profile(pod: Pod, container: Container) -> SecurityProfile | None:
    """Return the AppArmor profile: the container's field, the annotation that preceded it, or the
    pod's field.
    """
    if container.security_context is not None and container.security_context.app_armor_profile is not None:
        return container.security_context.app_armor_profile
    named = _annotated(pod.annotations.get(APPARMOR_ANNOTATION + container.name))
    if named is not None:
        return named
    return pod.spec.security_context.app_armor_profile if pod.spec.security_context is not None else None


def _annotated(value: str | None) -> SecurityProfile | None:
    if value == "runtime/default":
        return SecurityProfile(type="RuntimeDefault")
    if value == "unconfined":
        return SecurityProfile(type="Unconfined")
    if value is not None and value.startswith("localhost/"):
        return SecurityProfile(type="Localhost", localhost_profile=value.removeprefix("localhost/"))
    return None


def _set_app_armor(message: cri.LinuxContainerSecurityContext, profile: SecurityProfile) -> None:
    """Set the profile in today's field and in the one that older runtimes read."""
    kinds, name = cri.SecurityProfile, profile.localhost_profile or ""
    if profile.type == "Localhost":
        message.apparmor.CopyFrom(kinds(profile_type=kinds.Localhost, localhost_ref=name))
        message.apparmor_profile = f"localhost/{name}"
    elif profile.type == "RuntimeDefault":
        message.apparmor.CopyFrom(kinds(profile_type=kinds.RuntimeDefault))
        message.apparmor_profile = "runtime/default"
    else:
        message.apparmor.CopyFrom(kinds(profile_type=kinds.Unconfined))
        message.apparmor_profile = "unconfined"


def _seccomp(profile: SecurityProfile | None, root: Path, default: bool) -> cri.SecurityProfile:
    kinds = cri.SecurityProfile
    if profile is None:
        return kinds(profile_type=kinds.RuntimeDefault if default else kinds.Unconfined)
    if profile.type == "Localhost":
        if not profile.localhost_profile:
            raise InvalidInput("localhostProfile must be set if seccompProfile type is Localhost.")
        path = Path(profile.localhost_profile)
        if path.is_absolute() or ".." in path.parts:
            raise InvalidInput(f"localhostProfile {str(path)!r} leads out of {root}")
        return kinds(profile_type=kinds.Localhost, localhost_ref=str(root / path))
    return kinds(profile_type=kinds.RuntimeDefault if profile.type == "RuntimeDefault" else kinds.Unconfined)


def _groups(context: PodSecurityContext) -> list[int]:
    # The files of volumes belong to fsGroup, so every process of the pod is in it.
    of_files = [context.fs_group] if context.fs_group is not None else []
    return [*of_files, *(context.supplemental_groups or [])]


def _groups_policy(context: PodSecurityContext) -> cri.SupplementalGroupsPolicy:
    return cri.Strict if context.supplemental_groups_policy == "Strict" else cri.Merge


def _selinux(context: PodSecurityContext | SecurityContext) -> cri.SELinuxOption | None:
    options = context.se_linux_options
    if options is None:
        return None
    return cri.SELinuxOption(user=options.user, role=options.role, type=options.type, level=options.level)
