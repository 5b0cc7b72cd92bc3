"""Rejects pods that need what this machine or its runtime does not have, with the reason.

Source: kubelet v1.36 (`lifecycle` AppArmor and predicate handlers, `apparmor` validator).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from engine.admission.sysctls import SysctlAllowlist
from engine.api.lifecycle import AdmissionRejected
from engine.api.pod import Pod
from engine.node.runtime_view.runtime_health import RuntimeFeatures
from engine.node.spec.security import APPARMOR_ANNOTATION, app_armor_profile

POD_LEVEL_CLAIMS: Final = "claims are supported for containers, not for the pod as a whole"


def unsupported_fields(pod: Pod) -> Iterator[str]:
    """Return each unsupported field as `field: reason`."""
    resources = pod.spec.resources
    if resources is not None and resources.claims:
        yield f"spec.resources.claims: {POD_LEVEL_CLAIMS}"


APP_ARMOR: Final = "AppArmor"
UNSUPPORTED: Final = "UnsupportedPodFields"
GROUPS_POLICY: Final = "SupplementalGroupsPolicyNotSupported"


def app_armor_enabled(root: Path = Path("/")) -> bool:
    """Tell whether the kernel enforces AppArmor profiles, by the same test as container runtimes."""
    in_container = os.environ.get("container")  # noqa: SIM112
    if in_container or not (root / "sys/kernel/security/apparmor").exists():
        return False
    switch = root / "sys/module/apparmor/parameters/enabled"
    return switch.exists() and switch.read_text().startswith("Y")


class HostSupport:
    """Check pods; `check` raises `AdmissionRejected` for the first unsupported feature."""

    def __init__(
        self, *, sysctls: SysctlAllowlist, app_armor: bool, features: Callable[[], RuntimeFeatures]
    ) -> None:
        self._sysctls = sysctls
        self._app_armor = app_armor
        self._features = features

    def check(self, pod: Pod) -> None:
        unsupported = "; ".join(unsupported_fields(pod))
        if unsupported:
            raise AdmissionRejected(UNSUPPORTED, unsupported)
        context = pod.spec.security_context
        if context is not None and context.sysctls:
            self._sysctls.check(pod)
        strict = context is not None and context.supplemental_groups_policy == "Strict"
        if strict and not self._features().supplemental_groups_policy:
            text = "SupplementalGroupsPolicy=Strict is not supported in this node"
            raise AdmissionRejected(GROUPS_POLICY, text)
        wrong = self._wrong_app_armor(pod)
        if wrong:
            raise AdmissionRejected(APP_ARMOR, f"Cannot enforce AppArmor: {wrong}")

    def _wrong_app_armor(self, pod: Pod) -> str:
        if not _asks_for_app_armor(pod):
            return ""
        if not self._app_armor:
            return "AppArmor is not enabled on the host"
        for container in pod.all_containers:
            profile = app_armor_profile(pod, container)
            if profile is None or profile.type != "Localhost":
                continue
            if not (profile.localhost_profile or "").strip():
                return f"invalid empty AppArmor profile name: {profile.localhost_profile!r}"
        return ""


def _asks_for_app_armor(pod: Pod) -> bool:
    fields = [
        context.app_armor_profile
        for context in (pod.spec.security_context, *(c.security_context for c in pod.all_containers))
        if context is not None and context.app_armor_profile is not None
    ]
    annotated = [value for key, value in pod.annotations.items() if key.startswith(APPARMOR_ANNOTATION)]
    return any(profile.type != "Unconfined" for profile in fields) or any(
        v != "unconfined" for v in annotated
    )
