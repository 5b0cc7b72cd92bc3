"""Decide which labels a node may set on itself (kubelet v1.36 `ValidateKubeletFlags`, NodeRestriction)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.api.errors import InvalidInput

KUBELET_LABELS = (
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
)
KUBELET_NAMESPACES = ("kubelet.kubernetes.io", "node.kubernetes.io")
KUBERNETES = ("kubernetes.io", "k8s.io")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


def check_node_labels(labels: Mapping[str, str]) -> None:
    """Raise InvalidInput naming the labels for which the API server would refuse the Node."""
    refused = sorted(name for name in labels if not _allowed(name))
    if refused:
        raise InvalidInput(
            f"unknown 'kubernetes.io' or 'k8s.io' labels {', '.join(refused)}: there a node may only use "
            f"{', '.join(KUBELET_LABELS)}, and names that end in {' or '.join(KUBELET_NAMESPACES)}",
            subject="--node-labels",
        )
    for name, value in labels.items():
        prefix, slash, short = name.rpartition("/")
        good = _NAME.fullmatch(short) and (not slash or _PREFIX.fullmatch(prefix))
        if not good or (value and not _NAME.fullmatch(value)):
            raise InvalidInput(f"not a label: {name}={value}", subject="--node-labels")


def _allowed(name: str) -> bool:
    namespace = name.partition("/")[0] if "/" in name else ""
    if not _below(namespace, KUBERNETES):
        return True
    return name in KUBELET_LABELS or _below(namespace, KUBELET_NAMESPACES)


def _below(namespace: str, suffixes: tuple[str, ...]) -> bool:
    return any(namespace == suffix or namespace.endswith(f".{suffix}") for suffix in suffixes)
