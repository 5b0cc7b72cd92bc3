"""Tracks the host ports in use on a node."""

from __future__ import annotations

from engine.api.pod import Pod

Port = tuple[str, str, int]
_ANY = "0.0.0.0"


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
    """The pods that hold each host port; pods that came before the check may share one."""

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
        for port in host_ports(pod):
            held = self._holders.get(port[1:])
            if held and (port[0] == _ANY or any(other[0] in (_ANY, port[0]) for other in held)):
                return True
        return False
