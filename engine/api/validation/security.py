"""Security contexts of pods and containers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.api.pod import Container, Pod, SecurityProfile
from engine.api.validation.names import LARGEST_INT32, below, in_range, one_of

_SYSCTL = re.compile(r"(?:[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?")
_PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")


def pod_security(pod: Pod) -> Iterator[str]:
    spec, context, where = pod.spec, pod.spec.security_context, "spec.securityContext"
    if spec.share_process_namespace and spec.host_pid:
        yield "spec.shareProcessNamespace: not with hostPID"
    if spec.host_users is False:
        for name, given in (
            ("hostNetwork", spec.host_network),
            ("hostPID", spec.host_pid),
            ("hostIPC", spec.host_ipc),
        ):
            if given:
                yield f"spec.{name}: not with hostUsers false"
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
    yield from _profile(context.seccomp_profile, f"{where}.seccompProfile")
    yield from _profile(context.app_armor_profile, f"{where}.appArmorProfile", nested=False)
    seen: set[str] = set()
    for index, sysctl in enumerate(context.sysctls or []):
        field = f"{where}.sysctls[{index}].name"
        if len(sysctl.name) > 253 or _SYSCTL.fullmatch(sysctl.name) is None:
            yield f"{field}: {sysctl.name[:64]!r} is not a sysctl's name"
        elif sysctl.name in seen:
            yield f"{field}: {sysctl.name!r} is given twice"
        seen.add(sysctl.name)


def container_security(pod: Pod, container: Container, where: str) -> Iterator[str]:
    context = container.security_context
    if context is None:
        return
    yield from in_range(context.run_as_user, 0, LARGEST_INT32, f"{where}.runAsUser")
    yield from in_range(context.run_as_group, 0, LARGEST_INT32, f"{where}.runAsGroup")
    yield from one_of(context.proc_mount, ("Default", "Unmasked"), f"{where}.procMount")
    if context.proc_mount == "Unmasked" and pod.spec.host_users is not False:
        yield f"{where}.procMount: Unmasked needs hostUsers false"
    yield from _profile(context.seccomp_profile, f"{where}.seccompProfile")
    yield from _profile(context.app_armor_profile, f"{where}.appArmorProfile", nested=False)
    if context.allow_privilege_escalation is False:
        if context.privileged:
            yield f"{where}: allowPrivilegeEscalation false and privileged true contradict"
        if context.capabilities is not None and "CAP_SYS_ADMIN" in (context.capabilities.add or []):
            yield f"{where}: allowPrivilegeEscalation false and the capability CAP_SYS_ADMIN contradict"


def _profile(profile: SecurityProfile | None, where: str, *, nested: bool = True) -> Iterator[str]:
    """`nested`: a local profile is a path below the profiles' directory, not a name."""
    if profile is None:
        return
    yield from one_of(profile.type, _PROFILES, f"{where}.type")
    if profile.type != "Localhost":
        if profile.localhost_profile is not None:
            yield f"{where}.localhostProfile: only with the type Localhost"
    elif not profile.localhost_profile:
        yield f"{where}.localhostProfile: expected a profile with the type Localhost"
    elif nested:
        yield from below(profile.localhost_profile, f"{where}.localhostProfile")
