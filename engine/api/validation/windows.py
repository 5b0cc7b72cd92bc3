"""What `spec.os` allows: Windows options for Windows pods, Linux fields for Linux pods."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.api.pod import Pod, WindowsOptions
from engine.api.struct import json_name
from engine.api.validation.containers import containers_with_path
from engine.api.validation.names import dns_subdomain, one_of

_LARGEST_CREDENTIAL_SPEC = 64 * 1024
_LONGEST_DOMAIN, _LONGEST_USER = 255, 104
_NETBIOS = re.compile(r'[^\\/:*?"<>|.][^\\/:*?"<>|]{0,14}')
_DNS_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_DNS = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")
_NOT_IN_USERS = re.compile(r'["/\\:;|=,+*?<>@\[\]]')
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LINUX_POD_FIELDS = ("host_users", "share_process_namespace")
_LINUX_POD_SECURITY = (
    "app_armor_profile",
    "se_linux_options",
    "seccomp_profile",
    "fs_group",
    "fs_group_change_policy",
    "run_as_user",
    "run_as_group",
    "supplemental_groups",
    "supplemental_groups_policy",
    "se_linux_change_policy",
)
_LINUX_SECURITY = (
    "app_armor_profile",
    "se_linux_options",
    "seccomp_profile",
    "capabilities",
    "read_only_root_filesystem",
    "privileged",
    "allow_privilege_escalation",
    "proc_mount",
    "run_as_user",
    "run_as_group",
)


def os_problems(pod: Pod) -> Iterator[str]:
    yield from _options(pod)
    yield from _host_process(pod)
    if pod.spec.os is None:
        return
    yield from one_of(pod.spec.os.name, ("linux", "windows"), "spec.os.name")
    if pod.spec.os.name == "linux":
        for field, _ in _given_options(pod):
            yield f"{field}: must not be set for a Linux pod"
    elif pod.spec.os.name == "windows":
        for field in _linux_fields(pod):
            yield f"{field}: must not be set for a Windows pod"


def _given_options(pod: Pod) -> Iterator[tuple[str, WindowsOptions]]:
    """Yield the Windows options, those of the pod first."""
    of_pod = pod.spec.security_context
    if of_pod is not None and of_pod.windows_options is not None:
        yield "spec.securityContext.windowsOptions", of_pod.windows_options
    for where, container in containers_with_path(pod):
        context = container.security_context
        if context is not None and context.windows_options is not None:
            yield f"{where}.securityContext.windowsOptions", context.windows_options


def _linux_fields(pod: Pod) -> Iterator[str]:
    spec, where = pod.spec, "spec.securityContext"
    for name in _LINUX_POD_FIELDS:
        if getattr(spec, name) is not None:
            yield f"spec.{json_name(name)}"
    for name in ("host_pid", "host_ipc"):
        if getattr(spec, name):
            yield f"spec.{json_name(name)}"
    if spec.security_context is not None:
        for name in _LINUX_POD_SECURITY:
            if getattr(spec.security_context, name) is not None:
                yield f"{where}.{json_name(name)}"
        if spec.security_context.sysctls:
            yield f"{where}.sysctls"
    for field, container in containers_with_path(pod):
        for name in _LINUX_SECURITY if container.security_context is not None else ():
            if getattr(container.security_context, name) is not None:
                yield f"{field}.securityContext.{json_name(name)}"


def _options(pod: Pod) -> Iterator[str]:
    for where, options in _given_options(pod):
        if options.gmsa_credential_spec_name is not None:
            yield from dns_subdomain(options.gmsa_credential_spec_name, f"{where}.gmsaCredentialSpecName")
        spec = options.gmsa_credential_spec
        if spec is not None and not 0 < len(spec.encode()) <= _LARGEST_CREDENTIAL_SPEC:
            yield f"{where}.gmsaCredentialSpec: expected 1 to {_LARGEST_CREDENTIAL_SPEC} bytes"
        user = options.run_as_user_name
        if user is not None and not _is_windows_user(user):
            yield f"{where}.runAsUserName: expected USER or DOMAIN\\USER, got {user[:64]!r}"


def _is_windows_user(text: str) -> bool:
    """Return whether the text is a user's name with an optional domain in NetBIOS or DNS form."""
    # The limits are those of Active Directory (`validateWindowsSecurityContextOptions`).
    if _CONTROL.search(text) or text.count("\\") > 1:
        return False
    domain, slash, user = text.rpartition("\\")
    if slash and not (_NETBIOS.fullmatch(domain) or _DNS.fullmatch(domain)):
        return False
    if len(domain.encode()) > _LONGEST_DOMAIN or len(user.encode()) > _LONGEST_USER:
        return False
    return bool(user.strip(". ")) and _NOT_IN_USERS.search(user) is None


def _host_process(pod: Pod) -> Iterator[str]:
    """Check that all containers are host processes, in a pod with the host's network, or none is."""
    context = pod.spec.security_context
    options = context.windows_options if context is not None else None
    of_pod = options.host_process if options is not None else None
    found: list[bool] = []
    for where, container in containers_with_path(pod):
        security = container.security_context
        own = security.windows_options if security is not None else None
        host_process = own.host_process if own is not None else None
        field = f"{where}.securityContext.windowsOptions.hostProcess"
        if host_process is not None and of_pod is not None and host_process != of_pod:
            yield f"{field}: expected {str(of_pod).lower()} like the pod's"
        found.append(bool(of_pod if host_process is None else host_process))
    # A host process container has the host's namespaces, which the containers of a pod share.
    if any(found) and not all(found):
        yield "spec.containers: either all containers or none are hostProcess containers"
    if any(found) and not pod.spec.host_network:
        yield "spec.hostNetwork: expected true with hostProcess containers"
