"""Decides which sysctls a pod may set. Pure.

Source: kubelet v1.36 `sysctl` (safe list, allow list).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from engine.api.errors import InvalidInput
from engine.api.lifecycle import AdmissionRejected
from engine.api.pod import Pod
from engine.api.validation.sysctls import LONGEST_NAME, dotted, namespace_of

FORBIDDEN: Final = "SysctlForbidden"
_PATTERN: Final = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]")

_SAFE_SINCE: Final[tuple[tuple[str, tuple[int, int]], ...]] = (
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
)


def safe_sysctls(kernel: tuple[int, int]) -> list[str]:
    """Return the namespaced sysctls that cannot harm other pods on a kernel (major, minor)."""
    return [name for name, since in _SAFE_SINCE if kernel >= since]


def kernel_version(release: str) -> tuple[int, int]:
    """Parse `6.1.0-13-amd64` to (6, 1)."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match is not None else (0, 0)


class SysctlAllowlist:
    """Allow the safe sysctls and those of `allowedUnsafeSysctls`, including patterns that end in `*`.

    Raise `InvalidInput` for a malformed pattern, or for sysctls without a namespace.
    """

    def __init__(self, safe: Iterable[str], unsafe: Iterable[str]) -> None:
        self._names: dict[str, str] = {}
        self._prefixes: dict[str, str] = {}
        for pattern in (*safe, *unsafe):
            if len(pattern) > LONGEST_NAME or _PATTERN.fullmatch(pattern) is None:
                text = (
                    f"sysctl {pattern[:LONGEST_NAME]!r} must have at most {LONGEST_NAME} characters "
                    "and be a name, which may end in *"
                )
                raise InvalidInput(text, subject="allowedUnsafeSysctls")
            # The prefix decides about the namespace: `net.*` is the network's, `kernel.*` would be anybody's.
            prefix, star, _ = dotted(pattern).partition("*")
            namespace = namespace_of(prefix)
            if not namespace:
                text = f"the sysctls {prefix!r} are not known to be namespaced"
                raise InvalidInput(text, subject="allowedUnsafeSysctls")
            (self._prefixes if star else self._names)[prefix] = namespace

    def check(self, pod: Pod) -> None:
        """Raise `AdmissionRejected` for the first sysctl that the pod may not set."""
        context = pod.spec.security_context
        for sysctl in (context.sysctls if context is not None else None) or []:
            wrong = self._wrong(dotted(sysctl.name), pod)
            if wrong:
                raise AdmissionRejected(FORBIDDEN, f"forbidden sysctl: {wrong}")

    def _wrong(self, name: str, pod: Pod) -> str:
        namespace = self._names.get(name)
        if namespace is None:
            prefixes = (prefix for prefix in self._prefixes if name.startswith(prefix))
            found = next(prefixes, None)
            if found is None:
                return f'"{name}" not allowlisted'
            namespace = self._prefixes[found]
        # In a namespace of the host, the sysctl would be the node's.
        shared = pod.spec.host_ipc if namespace == "IPC" else pod.spec.host_network
        return f'"{name}" not allowed with host {namespace} enabled' if shared else ""
