"""Decides in-place resizes of CPU and memory: what changes, whether it fits, and in which order. Pure.

`CgroupManager.resize_pod` acts. Source: KEP-1287 and KEP-2837 as in kubelet v1.36: memory before CPU; a
parent grows before its children and shrinks after them; limits grow before requests and shrink after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec

from engine.api.config import EXCLUSIVE_CPUS_GATE, EXCLUSIVE_MEMORY_GATE, KubeletConfiguration
from engine.api.encoding.json_text import encode_json
from engine.api.pod import Container, Pod, ResourceList, ResourceRequirements
from engine.api.qos import GUARANTEED, compute_qos_class
from engine.api.quantity import ZERO, Quantity
from engine.api.resources import CPU, MEMORY, pod_requests
from engine.api.status import PodCondition
from engine.api.struct import to_builtins
from engine.cgroups.formulas.containers import (
    ContainerResources,
    ContainerRules,
    container_resources,
    effective_limit,
)
from engine.cgroups.formulas.values import PodRules, pod_values

RESIZABLE = (MEMORY, CPU)
RESTART_CONTAINER = "RestartContainer"
CONFIG_ANNOTATIONS = "kubernetes.io/config."
"""At this limit the runtime has the smallest quota that the kernel accepts, which says nothing."""
PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
DEFERRED, INFEASIBLE, FAILED = "Deferred", "Infeasible", "Error"

Verdict = Literal["Proceed", "Deferred", "Infeasible"]


class ContainerChange(msgspec.Struct, frozen=True):
    """Name a container whose CPU or memory changes, or the pod's limit that it inherits; `restart` if its
    resizePolicy asks for that.
    """

    name: str
    resources: tuple[str, ...]
    restart: bool


class PodResize(msgspec.Struct, frozen=True):
    """Describe the changes. A change of the pod's own amounts may leave every container as it is."""

    containers: tuple[ContainerChange, ...]
    pod_level: bool


class ResizeDecision(msgspec.Struct, frozen=True):
    """Tell whether a resize begins, waits, or is impossible on this node, and why; `short` is the missing
    resource, `detail` the label of an impossible one in metrics.
    """

    verdict: Verdict
    message: str = ""
    short: str = ""
    detail: str = ""

    def condition(self, generation: int = 0) -> PodCondition | None:
        """Return the PodResizePending condition; None if the resize proceeds."""
        if self.verdict == "Proceed":
            return None
        return PodCondition(
            type=PENDING,
            status="True",
            reason=self.verdict,
            message=self.message,
            observed_generation=generation,
        )


def in_progress(error: str = "", generation: int = 0) -> PodCondition:
    """Return the condition of a resize in progress, with reason Error after a refused step."""
    return PodCondition(
        type=IN_PROGRESS,
        status="True",
        reason=FAILED if error else "",
        message=error,
        observed_generation=generation,
    )


def resize_text(what: str, wanted: Pod, error: str = "") -> str:
    """Return the message of a resize event: the result, and the request as JSON."""

    def amounts(containers: list[Container]) -> list[object]:
        return [
            {
                "name": container.name,
                "resources": {
                    part: dict(sorted(to_builtins(given).items()))
                    for part, given in (("limits", container.limits), ("requests", container.requests))
                    if given
                },
            }
            for container in containers
        ]

    summary = {
        **({"initContainers": amounts(wanted.init_containers)} if wanted.init_containers else {}),
        "containers": amounts(wanted.spec.containers),
        "generation": wanted.metadata.generation,
        **({"error": error} if error else {}),
    }
    return f"Pod resize {what}: {encode_json(summary).decode()}"


def resize_of(old: Pod, new: Pod) -> PodResize | None:
    """Return what a new manifest resizes; None if it changes anything else, so that the pod must be replaced.

    Not a resize: another QoS class, a removed limit or request, and any other field, label or annotation.
    """
    if _without_amounts(old) != _without_amounts(new) or compute_qos_class(old) != compute_qos_class(new):
        return None
    changes: list[ContainerChange] = []
    for before, after in zip(old.all_containers, new.all_containers, strict=True):
        if _takes_away(before.resources, after.resources):
            return None
        changed = tuple(
            name
            for name in RESIZABLE
            if before.requests.get(name) != after.requests.get(name)
            or effective_limit(old, before, name) != effective_limit(new, after, name)
        )
        if changed:
            changes.append(ContainerChange(after.name, changed, _restarts(after, changed)))
    if _takes_away(old.spec.resources, new.spec.resources):
        return None
    pod_level = old.spec.resources != new.spec.resources
    return PodResize(tuple(changes), pod_level) if changes or pod_level else None


def _without_amounts(pod: Pod) -> tuple[object, ...]:
    """Return the pod without the amounts that a resize may change."""
    spec = msgspec.structs.replace(
        pod.spec,
        containers=[_stripped(c) for c in pod.spec.containers],
        init_containers=[_stripped(c) for c in pod.init_containers],
        resources=_other_resources(pod.spec.resources),
    )
    annotations = {k: v for k, v in pod.annotations.items() if not k.startswith(CONFIG_ANNOTATIONS)}
    return spec, pod.metadata.labels or {}, annotations


def _stripped(container: Container) -> Container:
    return msgspec.structs.replace(container, resources=_other_resources(container.resources))


def _other_resources(resources: ResourceRequirements | None) -> ResourceRequirements:
    resources = resources or ResourceRequirements()

    def others(amounts: ResourceList | None) -> ResourceList:
        return {name: amount for name, amount in (amounts or {}).items() if name not in RESIZABLE}

    return ResourceRequirements(
        requests=others(resources.requests), limits=others(resources.limits), claims=resources.claims or []
    )


def _takes_away(old: ResourceRequirements | None, new: ResourceRequirements | None) -> bool:
    for part in ("requests", "limits"):
        before = (getattr(old, part) if old else None) or {}
        after = (getattr(new, part) if new else None) or {}
        if before.keys() - after.keys():
            return True
    return False


def _restarts(container: Container, changed: tuple[str, ...]) -> bool:
    return any(
        policy.resource_name in changed and policy.restart_policy == RESTART_CONTAINER
        for policy in container.resize_policy or []
    )


def decide_resize(
    old: Pod,
    new: Pod,
    *,
    allocatable: Mapping[str, Quantity],
    others: Mapping[str, Quantity],
    config: KubeletConfiguration,
    may_swap: Callable[[Pod, Container], bool],
) -> ResizeDecision:
    """Decide whether the node can give the pod what it asks for now.

    `others` are the summed requests of all other active pods. A pod larger than the node is infeasible; one
    that does not fit next to the others is deferred; shrinking always fits. A container that may swap can
    get another memory request only by a restart.
    """
    if any(
        before.requests.get(MEMORY, ZERO) != after.requests.get(MEMORY, ZERO)
        and not _restarts(after, (MEMORY,))
        and (may_swap(old, before) or may_swap(new, after))
        for before, after in zip(old.all_containers, new.all_containers, strict=True)
    ):
        return ResizeDecision(
            "Infeasible",
            "In-place resize of containers with swap is not supported.",
            detail="swap_limitation",
        )
    if compute_qos_class(new) == GUARANTEED:
        for name, manager, gate, pins, policy in (
            (CPU, "CPU", EXCLUSIVE_CPUS_GATE, "static", config.cpu_manager_policy),
            (MEMORY, "Memory", EXCLUSIVE_MEMORY_GATE, "Static", config.memory_manager_policy),
        ):
            if policy == pins and not config.gate(gate, False) and _requests_differ(old, new, name):
                return ResizeDecision(
                    "Infeasible",
                    f'Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy "{policy}"',
                    detail=f"guaranteed_pod_{manager.lower()}_manager_static_policy",
                )
    wanted, current = pod_requests(new), pod_requests(old)
    for name in (CPU, MEMORY):
        request, capacity = wanted.get(name, ZERO), allocatable.get(name, ZERO)
        if request > capacity:
            return ResizeDecision(
                "Infeasible",
                f"Node didn't have enough capacity: {name}, requested: {_number(name, request)}, "
                f"capacity: {_number(name, capacity)}",
                detail="insufficient_node_allocatable",
            )
    for name in (CPU, MEMORY):
        request, capacity = wanted.get(name, ZERO), allocatable.get(name, ZERO)
        used = others.get(name, ZERO)
        if request > current.get(name, ZERO) and request + used > capacity:
            return ResizeDecision(
                "Deferred",
                f"Node didn't have enough resource: {name}, requested: {_number(name, request)}, "
                f"used: {_number(name, used)}, capacity: {_number(name, capacity)}",
                short=name,
            )
    return ResizeDecision("Proceed")


def _requests_differ(old: Pod, new: Pod, resource: str) -> bool:
    """Tell whether a container requests another amount."""
    return any(
        before.requests.get(resource) != after.requests.get(resource)
        for before, after in zip(old.all_containers, new.all_containers, strict=True)
    )


def _number(name: str, amount: Quantity) -> int:
    return amount.milli if name == CPU else amount.value


class PodStep(msgspec.Struct, frozen=True):
    """Write one resource's limit or request to the pod's cgroup."""

    resource: str
    part: Literal["limit", "request"]
    shrinks: bool


class ContainerStep(msgspec.Struct, frozen=True):
    """Send a container's values to the runtime; `shrinks` if the memory limit falls."""

    container: str
    resource: str
    resources: ContainerResources
    shrinks: bool


def resize_steps(
    old: Pod, new: Pod, pods: PodRules, containers: ContainerRules
) -> Iterator[PodStep | ContainerStep]:
    """Return the writes of a resize, ordered so that no cgroup ever exceeds its parent.

    Containers that restart are left out: they start with their new values.
    """
    before, after = pod_values(old, pods), pod_values(new, pods)
    resize = resize_of(old, new)
    if resize is None:
        return
    mixed = old
    for resource in RESIZABLE:
        if resource == MEMORY:
            limits = before.memory, after.memory
            requests = _protected(old, pods), _protected(new, pods)
        else:
            limits = before.cpu_quota, after.cpu_quota
            requests = before.cpu_shares or 0, after.cpu_shares or 0
        low, high = _ceiling(limits[0]), _ceiling(limits[1])
        if high > low:
            yield PodStep(resource, "limit", shrinks=False)
        if requests[1] > requests[0]:
            yield PodStep(resource, "request", shrinks=False)
        mixed = _with(mixed, new, resource)
        yield from _container_steps(old, mixed, new, resource, resize, containers)
        if requests[1] < requests[0]:
            yield PodStep(resource, "request", shrinks=True)
        if high < low:
            yield PodStep(resource, "limit", shrinks=True)


def _container_steps(
    old: Pod, mixed: Pod, new: Pod, resource: str, resize: PodResize, rules: ContainerRules
) -> Iterator[ContainerStep]:
    """Order the containers: those whose limit falls come first, so that their sum never exceeds the pod's."""
    restarting = {change.name for change in resize.containers if change.restart}
    steps: list[ContainerStep] = []
    for before, now in zip(old.all_containers, mixed.all_containers, strict=True):
        values = container_resources(mixed, now, rules)
        limits = effective_limit(old, before, resource), effective_limit(mixed, now, resource)
        changed = before.requests.get(resource) != now.requests.get(resource) or limits[0] != limits[1]
        follows_pod = (
            old.spec.resources != new.spec.resources and container_resources(old, before, rules) != values
        )
        if now.name in restarting or not (changed or follows_pod):
            continue
        # A limit where there was none is a smaller one: the usage may be above it.
        shrinks = _ceiling(limits[1].milli) < _ceiling(limits[0].milli)
        steps.append(ContainerStep(now.name, resource, values, shrinks))
    return iter(sorted(steps, key=lambda step: not step.shrinks))


def _with(mixed: Pod, new: Pod, resource: str) -> Pod:
    """Return `mixed` with the amounts of one resource from `new`."""

    def take(have: ResourceRequirements | None, want: ResourceRequirements | None) -> ResourceRequirements:
        parts: dict[str, ResourceList] = {}
        for part in ("requests", "limits"):
            amounts = dict((getattr(have, part) if have else None) or {})
            wanted = (getattr(want, part) if want else None) or {}
            amounts.pop(resource, None)
            if resource in wanted:
                amounts[resource] = wanted[resource]
            parts[part] = amounts
        return ResourceRequirements(**parts, claims=have.claims if have else None)

    def both(have: list[Container], want: list[Container]) -> list[Container]:
        return [
            msgspec.structs.replace(h, resources=take(h.resources, w.resources))
            for h, w in zip(have, want, strict=True)
        ]

    spec = mixed.spec
    pod_level = None if new.spec.resources is None else take(spec.resources, new.spec.resources)
    return msgspec.structs.replace(
        mixed,
        spec=msgspec.structs.replace(
            spec,
            containers=both(spec.containers, new.spec.containers),
            init_containers=both(mixed.init_containers, new.init_containers),
            resources=pod_level,
        ),
    )


def _protected(pod: Pod, rules: PodRules) -> int:
    return pod_requests(pod).get(MEMORY, ZERO).value if rules.memory_qos else 0


def _ceiling(limit: int | None) -> float:
    return float("inf") if limit is None or limit <= 0 else float(limit)
