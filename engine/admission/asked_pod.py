"""Reads the pods of a what-if question from options, the same way for every command. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.api.defaults import apply_defaults
from engine.api.documents import convert, load_pods
from engine.api.documents.nearest import nearest
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import NODE_CRITICAL_PRIORITY, SYSTEM_CRITICAL_PRIORITY, SYSTEM_NODE_CRITICAL
from engine.api.quantity import Quantity
from engine.api.resources import is_extended, is_hugepage
from engine.api.struct import decode_hook
from engine.api.validation.pod import problems

MAX_PODS = 100_000
UNKNOWN = "unknown resource"
_WELL_KNOWN = {
    SYSTEM_NODE_CRITICAL: NODE_CRITICAL_PRIORITY,
    "system-cluster-critical": SYSTEM_CRITICAL_PRIORITY,
}


class PodParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Hold the pods in question: one of `file`, `like` or the fields after them, which also override those of
    the manifest.
    """

    file: Annotated[
        str, Meta(description="a file of pod manifests, YAML or JSON; the question is answered for each pod")
    ] = ""
    like: Annotated[str, Meta(description="namespace/name of an existing pod to copy")] = ""
    name: Annotated[str, Meta(description="name used in the output")] = ""
    requests: Annotated[dict[str, str | int | float], Meta(description="resource requests")] = {}
    limits: Annotated[dict[str, str | int | float], Meta(description="resource limits")] = {}
    priority: Annotated[
        Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None, Meta(description="spec.priority")
    ] = None
    priority_class: Annotated[str, Meta(description="name of a PriorityClass")] = ""
    critical: Annotated[bool, Meta(description="priority 2000000000: the pod may preempt")] = False
    node_selector: Annotated[dict[str, str], Meta(description="spec.nodeSelector")] = {}
    tolerations: Annotated[list[dict[str, Any]], Meta(description="spec.tolerations")] = []


def pods_asked_about(
    parameters: PodParameters,
    *,
    like: Callable[[str], Pod],
    class_priority: Callable[[str], int | None],
    warn: Callable[[str], None] = lambda _: None,
    known_resources: Collection[str] = (),
) -> Sequence[Pod]:
    """Return typed pods with an API server's defaults, on no node yet. Raise `InvalidInput`.

    `like` finds a pod by `namespace/name`, `class_priority` the value of a PriorityClass;
    `warn` receives the ignored parts of a manifest. A resource name that no API server would take is refused
    with the nearest of `known_resources`.
    """
    if parameters.file and parameters.like:
        raise InvalidInput("give a file or an existing pod, not both", subject="like")
    if parameters.file:
        pods, warnings = load_pods(Path(parameters.file))
        for warning in warnings:
            warn(warning)
        if len(pods) > MAX_PODS:
            raise InvalidInput(f"holds more than {MAX_PODS} pods", subject=parameters.file)
    elif parameters.like:
        pods = [like(parameters.like)]
    elif parameters.requests or parameters.limits:
        pods = [Pod()]
    else:
        raise InvalidInput("specify a pod with file, like or requests", subject="file")
    for pod in pods:
        _change(pod, parameters, class_priority)
        # A copied pod names the node where it runs, and would fit no other (NodeName).
        pod.spec.node_name = ""
        apply_defaults(pod)
        _check_amounts(pod, parameters, known_resources)
    return pods


def _check_amounts(pod: Pod, parameters: PodParameters, known: Collection[str]) -> None:
    """Refuse amounts that an API server would refuse."""
    for problem in problems(pod):
        field, _, text = problem.partition(": ")
        if ".resources." not in field:
            continue
        name = field.partition(".resources.")[2].partition(".")[2]
        message = f"{name}: {text}{nearest(name, known) if UNKNOWN in text else ''}"
        if parameters.requests or parameters.limits:
            kind = field.partition(".resources.")[2].partition(".")[0]
            raise InvalidInput(message, subject=kind)
        raise InvalidInput(f"{field.removesuffix(name)}{message}", subject=parameters.file or pod.full_name)


def _change(pod: Pod, parameters: PodParameters, class_priority: Callable[[str], int | None]) -> None:
    pod.metadata.name = parameters.name or pod.metadata.name or "pod"
    changed: dict[str, Any] = {}
    if parameters.requests or parameters.limits:
        amounts = {"requests": parameters.requests, "limits": parameters.limits}
        _check_quantities(amounts)
        resources = {group: dict(given) for group, given in amounts.items() if given}
        for name, amount in parameters.requests.items():
            if is_extended(name) or is_hugepage(name):
                # Kubernetes accepts a request for these only with an equal limit.
                resources.setdefault("limits", {}).setdefault(name, amount)
        pod.spec.containers = convert(
            {"spec": {"containers": [{"name": "main", "resources": resources}]}}, Pod, "pod"
        ).spec.containers
        # They would count beside the new amounts, and the recorded class is that of the old ones.
        pod.spec.init_containers = None
        pod.status.qos_class = ""
    if parameters.node_selector:
        changed["nodeSelector"] = parameters.node_selector
    if parameters.tolerations:
        changed["tolerations"] = parameters.tolerations
    if changed:
        spec = convert({"spec": changed}, Pod, "pod").spec
        pod.spec.node_selector = spec.node_selector or pod.spec.node_selector
        pod.spec.tolerations = spec.tolerations or pod.spec.tolerations
    if parameters.priority_class:
        # The priority admission plugin writes the class's value into the pod; that of another class is stale.
        pod.spec.priority_class_name = parameters.priority_class
        pod.spec.priority = None
    if parameters.critical:
        pod.spec.priority = SYSTEM_CRITICAL_PRIORITY
    if parameters.priority is not None:
        pod.spec.priority = parameters.priority
    if pod.spec.priority is None and pod.spec.priority_class_name:
        pod.spec.priority = _priority_of(pod.spec.priority_class_name, class_priority)


def _check_quantities(amounts: Mapping[str, Mapping[str, str | int | float]]) -> None:
    for group, given in amounts.items():
        for name, amount in given.items():
            try:
                decode_hook(Quantity, amount)
            except (ValueError, TypeError) as error:
                raise InvalidInput(f"{name}: {error}", subject=group) from None


def _priority_of(name: str, class_priority: Callable[[str], int | None]) -> int:
    value = _WELL_KNOWN.get(name)
    if value is None:
        value = class_priority(name)
    if value is None:
        raise InvalidInput("unknown PriorityClass; give a priority instead", subject=name)
    return value
