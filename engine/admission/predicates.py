"""Runs the kubelet's admission checks in its order. Pure.

Source: kubelet v1.36 `lifecycle/predicate.go` (Admit, generalFilter, removeMissingExtendedResources) and the
scheduler's AdmissionCheck.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from engine.admission.failures import (
    NODE_AFFINITY,
    NODE_NAME,
    NODE_PORTS,
    OS_FIELD,
    OS_SELECTOR,
    TAINT,
    Failure,
    InsufficientResource,
)
from engine.admission.selectors import NO_EXECUTE, matches_node, tolerates
from engine.api.errors import InvalidInput
from engine.api.node import Node, Taint
from engine.api.pod import Pod
from engine.api.qos import is_static
from engine.api.quantity import ZERO
from engine.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, is_extended, scaled

Port = tuple[str, str, int]
_ANY = "0.0.0.0"
OS: Final = "linux"
OS_LABEL: Final = "kubernetes.io/os"

NATIVE: Final = (CPU, MEMORY, EPHEMERAL_STORAGE)


class NodeFacts(msgspec.Struct, frozen=True):
    """Hold what admission needs of a Node, scaled to integers once."""

    name: str
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    allocatable: Mapping[str, int] = msgspec.field(default_factory=dict)
    pod_limit: int = 0

    @classmethod
    def of(cls, node: Node) -> NodeFacts:
        """Read a Node. Raises `InvalidInput` for a negative amount."""
        for name, quantity in node.allocatable.items():
            if quantity < ZERO:
                where = f"node {node.metadata.name}"
                raise InvalidInput(f"status.allocatable.{name}: {quantity} is negative", subject=where)
        amounts = {name: scaled(name, quantity) for name, quantity in node.allocatable.items()}
        labels = node.labels
        return cls(
            name=node.metadata.name,
            # `rejectPodAdmissionBasedOnOSSelector` writes the label into the node's map, which the selectors
            # that are matched next then see; without any labels it writes into a map of its own.
            labels={**labels, OS_LABEL: OS} if labels else {},
            taints=tuple(taint for taint in node.spec.taints or () if taint.effect == NO_EXECUTE),
            pod_limit=amounts.pop(PODS, 0),
            allocatable=amounts,
        )


def wrong_os(pod: Pod) -> Failure | None:
    """Check the operating system before anything else; the label is the pod's own."""
    if (pod.metadata.labels or {}).get(OS_LABEL, OS) != OS:
        return OS_SELECTOR
    if pod.spec.os is not None and pod.spec.os.name != OS:
        return OS_FIELD
    return None


def counted_requests(requests: Mapping[str, int], pod: Pod, allocatable: Mapping[str, int]) -> dict[str, int]:
    """Return the pod's requests without those of containers for extended resources that the node does not
    have.

    Based on `engine.api.resources.pod_requests`, scaled; overhead of such resources stays.
    """
    counted = {}
    for name, amount in requests.items():
        if name not in NATIVE and name not in allocatable and is_extended(name):
            overhead = (pod.spec.overhead or {}).get(name)
            if overhead is None:
                continue
            # The kubelet drops the container's request from a copy of the pod, whose overhead stays.
            amount = overhead.value
        counted[name] = amount
    return counted


def resource_failures(
    wanted: Mapping[str, int], used: Mapping[str, int], pods: int, node: NodeFacts
) -> list[Failure]:
    """Check pods, cpu, memory, ephemeral-storage, then the others by name. A resource without a request
    always fits.
    """
    failures: list[Failure] = []
    if pods + 1 > node.pod_limit:
        failures.append(InsufficientResource(PODS, 1, pods, node.pod_limit))
    allocatable = node.allocatable
    for name in NATIVE:
        amount = wanted.get(name, 0)
        # A pod that asks for nothing fits a node that is overcommitted.
        if amount > 0 and amount > allocatable.get(name, 0) - used.get(name, 0):
            failures.append(InsufficientResource(name, amount, used.get(name, 0), allocatable.get(name, 0)))
    if len(wanted) > len(NATIVE) or not wanted.keys() <= set(NATIVE):
        for name in sorted(wanted.keys() - NATIVE):
            amount = wanted[name]
            if amount and is_counted(name) and amount > allocatable.get(name, 0) - used.get(name, 0):
                failures.append(
                    InsufficientResource(name, amount, used.get(name, 0), allocatable.get(name, 0))
                )
    return failures


def is_counted(resource: str) -> bool:
    """Tell whether Kubernetes counts a resource besides the native ones.

    These are extended resources, huge pages, `kubernetes.io/` names and attachable volumes.
    """
    return (
        is_extended(resource)
        or resource.startswith(("hugepages-", "attachable-volumes-"))
        or ("/" in resource and "kubernetes.io/" in resource)
    )


def other_failures(pod: Pod, node: NodeFacts, ports: UsedPorts) -> list[Failure]:
    """Return the failed checks that freeing resources would not cure."""
    failures: list[Failure] = []
    spec = pod.spec
    if (spec.node_selector or spec.affinity) and not matches_node(pod, node.labels, node.name):
        failures.append(NODE_AFFINITY)
    if spec.node_name and spec.node_name != node.name:
        failures.append(NODE_NAME)
    if ports.conflict(pod):
        failures.append(NODE_PORTS)
    # Not of static pods, as `generalFilter`: no scheduler could place them elsewhere.
    if (
        node.taints
        and not is_static(pod)
        and not all(tolerates(spec.tolerations or (), taint) for taint in node.taints)
    ):
        failures.append(TAINT)
    return failures


def host_ports(pod: Pod) -> list[Port]:
    """Return (address, protocol, port) of sidecars and app containers, as kubelet v1.36 counts them."""
    containers = pod.spec.containers
    if pod.spec.init_containers:
        containers = [*(c for c in pod.spec.init_containers if c.is_sidecar), *containers]
    found = []
    for container in containers:
        if container.ports:
            for port in container.ports:
                if port.host_port > 0:
                    found.append((port.host_ip or _ANY, port.protocol or "TCP", port.host_port))
    return found


class UsedPorts:
    """Track which pods hold each host port; pods that came before the check may share one."""

    def __init__(self) -> None:
        self._holders: dict[tuple[str, int], dict[Port, int]] = {}

    def add(self, pod: Pod) -> None:
        for port in host_ports(pod):
            holders = self._holders.setdefault(port[1:], {})
            holders[port] = holders.get(port, 0) + 1

    def remove(self, pod: Pod) -> None:
        for port in host_ports(pod):
            holders = self._holders[port[1:]]
            holders[port] -= 1
            if not holders[port]:
                del holders[port]
            if not holders:
                del self._holders[port[1:]]

    def conflict(self, pod: Pod) -> bool:
        """Tell whether a wanted port is held on the same address, or on any if either side means all."""
        return any(map(self._held, host_ports(pod)))

    def conflicting(self, pod: Pod) -> list[Port]:
        """Return the wanted ports that are held."""
        return [port for port in host_ports(pod) if self._held(port)]

    def _held(self, port: Port) -> bool:
        held = self._holders.get(port[1:], {})
        return bool(held) and (port[0] == _ANY or any(other[0] in (_ANY, port[0]) for other in held))


def port_text(port: Port) -> str:
    """Return a port as `8080/TCP`, after its address if it is not for all."""
    address, protocol, number = port
    return f"{'' if address == _ANY else f'{address}:'}{number}/{protocol}"
