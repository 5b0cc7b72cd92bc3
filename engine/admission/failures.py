"""Words the reasons why a node does not admit a pod, as the kubelet does."""

from __future__ import annotations

from typing import Any, Final

import msgspec

UNEXPECTED: Final = "UnexpectedAdmissionError"

OS_SELECTOR_REASON: Final = "PodOSSelectorNodeLabelDoesNotMatch"
OS_FIELD_REASON: Final = "PodOSNotSupported"


class InsufficientResource(msgspec.Struct, frozen=True):
    """Name a resource that does not fit. Amounts are milli-CPU for cpu, base units otherwise."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def reason(self) -> str:
        return f"OutOf{self.resource}"

    @property
    def message(self) -> str:
        return (
            f"Node didn't have enough resource: {self.resource}, requested: {self.requested}, "
            f"used: {self.used}, capacity: {self.capacity}"
        )

    @property
    def missing(self) -> int:
        """Return how much must be freed."""
        # Less than nothing may be free: running pods keep their place on a node that has shrunk.
        return self.requested - (self.capacity - self.used)

    def describe(self) -> dict[str, Any]:
        return {
            "resource": self.resource,
            "requested": self.requested,
            "used": self.used,
            "capacity": self.capacity,
        }


class PredicateFailure(msgspec.Struct, frozen=True):
    """Describe a failed check that freeing resources would not help: affinity, node name, ports, taints."""

    predicate: str
    detail: str

    @property
    def reason(self) -> str:
        return self.predicate

    @property
    def message(self) -> str:
        return f"Predicate {self.predicate} failed: {self.detail}"

    def describe(self) -> dict[str, Any]:
        return {"predicate": self.predicate, "reason": self.detail}


class WrongOS(msgspec.Struct, frozen=True):
    """Reject a pod for another operating system; nothing else is checked."""

    reason: str
    message: str

    def describe(self) -> dict[str, Any]:
        return {"predicate": self.reason, "reason": self.message}


Failure = InsufficientResource | PredicateFailure | WrongOS

NODE_AFFINITY: Final = PredicateFailure("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
NODE_NAME: Final = PredicateFailure("NodeName", "node(s) didn't match the requested node name")
NODE_PORTS: Final = PredicateFailure(
    "NodePorts", "node(s) didn't have free ports for the requested pod ports"
)
TAINT: Final = PredicateFailure("TaintToleration", "node(s) had taints that the pod didn't tolerate")
OS_SELECTOR: Final = WrongOS(
    OS_SELECTOR_REASON, "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
)
OS_FIELD: Final = WrongOS(OS_FIELD_REASON, "Failed to admit pod as the OS field doesn't match node OS")

_PREEMPTION: Final = "attempting to recover from admission failure"
"""Part of the message of a critical pod for which not enough can be preempted."""


def is_of_predicates(reason: str, message: str) -> bool:
    """Tell whether predicates or preemption refused a pod, not the managers of devices, CPUs and memory."""
    if reason == UNEXPECTED:
        return _PREEMPTION in message
    known = (NODE_AFFINITY, NODE_NAME, NODE_PORTS, TAINT)
    return reason.startswith("OutOf") or reason in [failure.reason for failure in known]
