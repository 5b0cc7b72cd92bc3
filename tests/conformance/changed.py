"""Find the recorded cases of v1.32 that v1.36 decides otherwise, with the reasons.

v1.36 is the rule (docs/differences.d names the differences from v1.32). A case is left out only where the
changed rule gives it another input; all its other results are still compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.api.pod import Pod
from engine.api.quantity import ZERO, Quantity
from engine.api.resources import ranking_list


def sums_changed(pods: Iterable[Pod]) -> bool:
    """Tell whether a pod's request for preemption and ranking differs from v1.32's.

    v1.32 counted a sidecar like an ordinary init container, and did not know `spec.resources`.
    """
    return any(_in_v1_32(pod) != _asked_for(ranking_list(pod)) for pod in pods)


def _in_v1_32(pod: Pod) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {}
    for container in pod.spec.containers:
        for name, amount in container.requests.items():
            total[name] = total.get(name, ZERO) + amount
    for container in pod.init_containers:
        for name, amount in container.requests.items():
            total[name] = max(total.get(name, ZERO), amount)
    for name, amount in (pod.spec.overhead or {}).items():
        if total.get(name, ZERO):
            total[name] += amount
    return _asked_for(total)


def _asked_for(amounts: dict[str, Quantity]) -> dict[str, Quantity]:
    return {name: amount for name, amount in amounts.items() if amount}


def hints_of_device_nodes(case: dict[str, Any], hints: list[Any] | None) -> list[Any] | None:
    """Return a recorded list of hints without the masks that v1.36 no longer lists.

    These contain a NUMA node to which no device of the resource is attached.
    """
    nodes = {node for device in case["devices"] for node in device["numa"] or ()} & set(case["numa_nodes"])
    if hints is None or not nodes:
        return hints
    return [hint for hint in hints if nodes.issuperset(hint["mask"])]


INSUFFICIENT = "Insufficient free disk space on the node's image filesystem"
"""How v1.36 begins what v1.32 said of an image collection that freed too little."""


def ports_changed(pods: Iterable[Pod]) -> bool:
    """Tell whether a sidecar has a host port, which v1.36 counts and v1.32 did not."""
    return any(
        port.host_port
        for pod in pods
        for container in pod.init_containers
        if container.is_sidecar
        for port in container.ports or ()
    )
