"""Where a pod may run: node selectors, tolerations, gates, priority."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api.pod import Pod
from engine.api.resources import is_qualified_name
from engine.api.scheduling import Toleration
from engine.api.validation.affinity import affinity_problems
from engine.api.validation.names import (
    dns_subdomain,
    is_label_value,
    labels,
    one_of,
    qualified_name,
)

_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")


def placement_problems(pod: Pod) -> Iterator[str]:
    spec = pod.spec
    yield from labels(spec.node_selector, "spec.nodeSelector")
    for index, toleration in enumerate(spec.tolerations or []):
        yield from toleration_problems(toleration, f"spec.tolerations[{index}]")
    yield from affinity_problems(pod)
    if spec.scheduling_gates:
        yield "spec.schedulingGates: expected none: the pod is already assigned to its node"
    if spec.scheduling_group is not None:
        name = spec.scheduling_group.pod_group_name
        yield from dns_subdomain(name or "", "spec.schedulingGroup.podGroupName")
    for index, gate in enumerate(spec.readiness_gates or []):
        yield from qualified_name(gate.condition_type, f"spec.readinessGates[{index}].conditionType")
    if spec.priority_class_name:
        yield from dns_subdomain(spec.priority_class_name, "spec.priorityClassName")
    yield from one_of(spec.preemption_policy, ("PreemptLowerPriority", "Never"), "spec.preemptionPolicy")


def toleration_problems(toleration: Toleration, where: str) -> Iterator[str]:
    if toleration.key and not is_qualified_name(toleration.key):
        yield f"{where}.key: {toleration.key[:64]!r} is not a label's name"
    # An empty key tolerates every taint, which an operator that compares values cannot mean.
    if not toleration.key and toleration.operator != "Exists":
        yield f"{where}.operator: expected Exists where no key is given, got {toleration.operator[:64]!r}"
    yield from one_of(toleration.operator, ("", "Equal", "Exists"), f"{where}.operator")
    if toleration.operator == "Exists" and toleration.value:
        yield f"{where}.value: expected none with the operator Exists"
    elif not is_label_value(toleration.value):
        yield f"{where}.value: {toleration.value[:64]!r} is not a label's value"
    yield from one_of(toleration.effect, _EFFECTS, f"{where}.effect")
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        yield f"{where}.effect: expected NoExecute with tolerationSeconds, got {toleration.effect[:64]!r}"
