"""Annotations that once carried fields: profiles of seccomp and AppArmor, tolerations.

A kubelet still checks their values, and that they do not contradict the fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from engine.api.pod import Pod, SecurityProfile
from engine.api.scheduling import Toleration
from engine.api.validation.containers import containers_with_path
from engine.api.validation.names import below
from engine.api.validation.placement import toleration_problems

_TOLERATIONS: Final = "scheduler.alpha.kubernetes.io/tolerations"
_SECCOMP_POD: Final = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP: Final = "container.seccomp.security.alpha.kubernetes.io/"
_APP_ARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"
_LOCALHOST: Final = "localhost/"
_OLD_NAMES: Final = {"Unconfined": ("unconfined",), "RuntimeDefault": ("runtime/default", "docker/default")}


def annotation_problems(pod: Pod) -> Iterator[str]:
    for name, value in pod.annotations.items():
        field = f"metadata.annotations.{name[:128]}"
        if name == _TOLERATIONS and value:
            yield from _tolerations(value, field)
        elif name == _SECCOMP_POD or name.startswith(_SECCOMP):
            yield from _seccomp_value(value, field)
        elif name.startswith(_APP_ARMOR):
            if name.removeprefix(_APP_ARMOR) not in {one.name for one in pod.all_containers}:
                yield f"{field}: no container has this name"
            if value not in ("", "runtime/default", "unconfined") and not value.startswith(_LOCALHOST):
                yield f"{field}: {value[:64]!r} is not an AppArmor profile"
    yield from _contradictions(pod)


def _tolerations(value: str, field: str) -> Iterator[str]:
    try:
        tolerations = msgspec.json.decode(value, type=list[Toleration])
    except msgspec.DecodeError as error:
        yield f"{field}: {error}"
        return
    for index, toleration in enumerate(tolerations):
        yield from toleration_problems(toleration, f"{field}[{index}]")


def _seccomp_value(value: str, field: str) -> Iterator[str]:
    if value.startswith(_LOCALHOST):
        yield from below(value.removeprefix(_LOCALHOST), field)
    elif value not in ("runtime/default", "docker/default", "unconfined"):
        yield f"{field}: {value[:64]!r} is not a seccomp profile"


def _contradictions(pod: Pod) -> Iterator[str]:
    of_pod = pod.spec.security_context
    app_armor = of_pod.app_armor_profile if of_pod is not None else None
    if of_pod is not None:
        where = "spec.securityContext.seccompProfile"
        yield from _compared(pod, _SECCOMP_POD, of_pod.seccomp_profile, where)
    # AppArmor is Linux's: fields of a Windows pod are refused by `windows`, with a better message.
    windows = pod.spec.os is not None and pod.spec.os.name == "windows"
    for where, container in containers_with_path(pod):
        context, field = container.security_context, f"{where}.securityContext"
        if context is not None:
            key = _SECCOMP + container.name
            yield from _compared(pod, key, context.seccomp_profile, f"{field}.seccompProfile")
        own = context.app_armor_profile if context is not None else None
        if not windows:
            key = _APP_ARMOR + container.name
            yield from _compared(pod, key, own or app_armor, f"{field}.appArmorProfile")


def _compared(pod: Pod, annotation: str, profile: SecurityProfile | None, field: str) -> Iterator[str]:
    value = pod.annotations.get(annotation)
    if value is None or profile is None:
        return
    if profile.type == "Localhost":
        same = profile.localhost_profile is not None and value == _LOCALHOST + profile.localhost_profile
    else:
        names = _OLD_NAMES.get(profile.type, (value,))
        # `docker/default` is an old name of the runtime's seccomp profile only, never of an AppArmor profile.
        same = value in (names if annotation.startswith((_SECCOMP, _SECCOMP_POD)) else names[:1])
    if not same:
        yield f"{field}: differs from the annotation {annotation[:128]}: {value[:64]!r}"
