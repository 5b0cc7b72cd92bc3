"""Security contexts of pods and containers."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api.pod import Container, Pod, PodSecurityContext, SecurityProfile
from engine.api.validation.names import LARGEST_INT32, below, in_range, one_of
from engine.api.validation.sysctls import is_sysctl_name, namespace_of

_PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")
_LONGEST_PROFILE = 4095


def pod_security(pod: Pod) -> Iterator[str]:
    spec, context, where = pod.spec, pod.spec.security_context, "spec.securityContext"
    if spec.share_process_namespace and spec.host_pid:
        yield "spec.shareProcessNamespace: must not be set with hostPID"
    # Ids of a user namespace mean nothing in a namespace of the host (KEP-127); the gate that allows the
    # network's, UserNamespacesHostNetworkSupport, is alpha and off.
    if spec.host_users is False:
        for name, given in (
            ("hostNetwork", spec.host_network),
            ("hostPID", spec.host_pid),
            ("hostIPC", spec.host_ipc),
        ):
            if given:
                yield f"spec.{name}: must not be set with hostUsers: false"
    if context is None:
        return
    ids = {"runAsUser": context.run_as_user, "runAsGroup": context.run_as_group, "fsGroup": context.fs_group}
    for name, id in ids.items():
        yield from in_range(id, 0, LARGEST_INT32, f"{where}.{name}")
    for index, group in enumerate(context.supplemental_groups or []):
        yield from in_range(group, 0, LARGEST_INT32, f"{where}.supplementalGroups[{index}]")
    policy = context.supplemental_groups_policy
    yield from one_of(policy, ("Merge", "Strict"), f"{where}.supplementalGroupsPolicy")
    yield from one_of(
        context.fs_group_change_policy, ("OnRootMismatch", "Always"), f"{where}.fsGroupChangePolicy"
    )
    yield from one_of(context.se_linux_change_policy, ("Recursive",), f"{where}.seLinuxChangePolicy")
    yield from _seccomp(context.seccomp_profile, f"{where}.seccompProfile")
    yield from _app_armor(context.app_armor_profile, f"{where}.appArmorProfile")
    yield from _sysctls(pod, context, f"{where}.sysctls")


def _sysctls(pod: Pod, context: PodSecurityContext, where: str) -> Iterator[str]:
    seen: set[str] = set()
    for index, sysctl in enumerate(context.sysctls or []):
        field = f"{where}[{index}].name"
        if not is_sysctl_name(sysctl.name):
            yield f"{field}: {sysctl.name[:64]!r} is not a sysctl's name"
        elif sysctl.name in seen:
            yield f"{field}: {sysctl.name!r} is given twice"
        seen.add(sysctl.name)
        namespace = namespace_of(sysctl.name)
        if pod.spec.host_network and namespace == "Net":
            yield (
                f"{field}: {sysctl.name[:64]!r} cannot be set with hostNetwork: the network namespace "
                "is the node's"
            )
        if pod.spec.host_ipc and namespace == "IPC":
            yield f"{field}: {sysctl.name[:64]!r} cannot be set with hostIPC: the IPC namespace is the node's"


def container_security(pod: Pod, container: Container, where: str) -> Iterator[str]:
    context = container.security_context
    if context is None:
        return
    yield from in_range(context.run_as_user, 0, LARGEST_INT32, f"{where}.runAsUser")
    yield from in_range(context.run_as_group, 0, LARGEST_INT32, f"{where}.runAsGroup")
    yield from one_of(context.proc_mount, ("Default", "Unmasked"), f"{where}.procMount")
    # An unmasked /proc lets a process write kernel settings, which only a user namespace withholds
    # (KEP-4265).
    if context.proc_mount == "Unmasked" and pod.spec.host_users is not False:
        yield f"{where}.procMount: Unmasked requires hostUsers: false"
    yield from _seccomp(context.seccomp_profile, f"{where}.seccompProfile")
    yield from _app_armor(context.app_armor_profile, f"{where}.appArmorProfile")
    # no_new_privs is useless to a process that has every privilege already.
    if context.allow_privilege_escalation is False:
        if context.privileged:
            yield f"{where}: cannot combine allowPrivilegeEscalation: false with privileged: true"
        if context.capabilities is not None and "CAP_SYS_ADMIN" in (context.capabilities.add or []):
            yield f"{where}: cannot combine allowPrivilegeEscalation: false with the capability CAP_SYS_ADMIN"


def _seccomp(profile: SecurityProfile | None, where: str) -> Iterator[str]:
    """Check a seccomp profile; the path of a Localhost profile stays below the directory of profiles."""
    yield from _profile_type(profile, where)
    if profile is not None and profile.type == "Localhost" and profile.localhost_profile is not None:
        yield from below(profile.localhost_profile, f"{where}.localhostProfile")


def _app_armor(profile: SecurityProfile | None, where: str) -> Iterator[str]:
    """Check an AppArmor profile; a Localhost profile is a name that the kernel knows."""
    yield from _profile_type(profile, where)
    if profile is None or profile.type != "Localhost" or profile.localhost_profile is None:
        return
    name, field = profile.localhost_profile, f"{where}.localhostProfile"
    if not name or name != name.strip():
        yield f"{field}: must not begin or end with white space, got {name[:64]!r}"
    if len(name.encode()) > _LONGEST_PROFILE:
        yield f"{field}: expected at most {_LONGEST_PROFILE} bytes"


def _profile_type(profile: SecurityProfile | None, where: str) -> Iterator[str]:
    if profile is None:
        return
    yield from one_of(profile.type, _PROFILES, f"{where}.type")
    if profile.type != "Localhost" and profile.localhost_profile is not None:
        yield f"{where}.localhostProfile: may be set only with the type Localhost"
    if profile.type == "Localhost" and profile.localhost_profile is None:
        yield f"{where}.localhostProfile: the type Localhost requires a profile"
