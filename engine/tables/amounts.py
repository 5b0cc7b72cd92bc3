"""Computes the entries of one pod for the columns."""

from __future__ import annotations

from typing import Final

import msgspec

from engine._fast.preemption.requests import requests
from engine.api.errors import InvalidInput
from engine.api.pod import Pod, ResourceRequirements
from engine.api.qos import is_critical, is_mirror, is_static, qos_class
from engine.api.quantity import NANO, ZERO
from engine.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    PODS,
    pod_limits,
    pod_requests,
    ranking_list,
    scaled,
)
from engine.tables.columns import (
    CPU_LIMITED,
    CRITICAL,
    DO_NOT_PREEMPT_ANNOTATION,
    HAS_PRIORITY,
    LIVE,
    MEMORY_LIMITED,
    MIRROR,
    PROTECTED,
    QOS_CODES,
    STATIC,
)
from engine.tables.names import ResourceNames

MAX_AMOUNT: Final = 2**63 - 1
MAX_PRIORITY: Final = 2**31 - 1


class PodEntry(msgspec.Struct, frozen=True):
    """Hold the content of a row; amounts per resource name, without `pods`."""

    qos: int
    flags: int
    priority: int
    creation: float
    requests: dict[str, int]
    ranking: dict[str, int]
    limits: tuple[int, int, int]
    fraction: tuple[int, int]


def pod_entry(pod: Pod) -> PodEntry:
    """Compute the entry. Raises `InvalidInput` for a negative amount, one beyond 2^63 - 1, or a pod without a
    uid.
    """
    if not pod.uid:
        raise InvalidInput("metadata.uid: expected a uid", subject=pod.full_name)
    counted = {name: scaled(name, amount) for name, amount in pod_requests(pod).items()}
    # The kubelet's eviction compares exact quantities; the column is rounded up, and `fraction` says by how
    # much.
    exact = {CPU: ZERO, MEMORY: ZERO, EPHEMERAL_STORAGE: ZERO, **ranking_list(pod)}
    exact.pop(PODS, None)
    ranking = {name: scaled(name, amount) for name, amount in exact.items()}
    limits = pod_limits(pod)
    limited = tuple(scaled(name, limits.get(name, ZERO)) for name in (CPU, MEMORY, EPHEMERAL_STORAGE))
    counted.pop(PODS, None)
    _check(pod, counted, ranking, dict(zip((CPU, MEMORY, EPHEMERAL_STORAGE), limited, strict=True)))
    priority = pod.spec.priority
    if priority is not None and not -MAX_PRIORITY - 1 <= priority <= MAX_PRIORITY:
        raise InvalidInput(f"spec.priority: {priority} is not a 32-bit integer", subject=pod.full_name)
    created = pod.metadata.creation_timestamp
    return PodEntry(
        qos=QOS_CODES[qos_class(pod)],
        flags=_flags(pod),
        priority=priority or 0,
        creation=created.timestamp() if created else 0.0,
        requests=counted,
        ranking=ranking,
        limits=limited,  # type: ignore[arg-type]
        fraction=(-exact[MEMORY].nano % NANO, -exact[EPHEMERAL_STORAGE].nano % NANO),
    )


def _check(pod: Pod, *sums: dict[str, int]) -> None:
    for container in pod.all_containers:
        _check_signs(container.resources, f"{pod.full_name}: container {container.name}")
    _check_signs(pod.spec.resources, pod.full_name)
    for name, quantity in (pod.spec.overhead or {}).items():
        if quantity < ZERO:
            raise InvalidInput(f"spec.overhead.{name}: {quantity} is negative", subject=pod.full_name)
    for total in sums:
        for name, amount in total.items():
            if amount > MAX_AMOUNT:
                raise InvalidInput(f"{name}: {amount} does not fit in 64 bits", subject=pod.full_name)


def _check_signs(resources: ResourceRequirements | None, where: str) -> None:
    if resources is None:
        return
    for kind, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        for name, quantity in (amounts or {}).items():
            if quantity < ZERO:
                raise InvalidInput(f"resources.{kind}.{name}: {quantity} is negative", subject=where)


def _flags(pod: Pod) -> int:
    flags = LIVE
    flags |= CRITICAL if is_critical(pod) else 0
    flags |= HAS_PRIORITY if pod.spec.priority is not None else 0
    flags |= STATIC if is_static(pod) else 0
    flags |= MIRROR if is_mirror(pod) else 0
    flags |= PROTECTED if pod.annotations.get(DO_NOT_PREEMPT_ANNOTATION) == "true" else 0
    containers = pod.all_containers
    flags |= CPU_LIMITED if containers and all(c.limits.get(CPU, ZERO) for c in containers) else 0
    flags |= MEMORY_LIMITED if containers and all(c.limits.get(MEMORY, ZERO) for c in containers) else 0
    return flags


def requests_of(pod: Pod, names: ResourceNames | None = None) -> dict[str, int]:
    """Return what admission counts for a pod, scaled, without `pods`. Known `names` make it fast.

    Raises `InvalidInput` as `pod_entry` does.
    """
    if names is not None and pod.uid:
        found = requests(pod, names.ids, names.in_order)
        if found is not None:
            return found
    # Not an ordinary pod: it has something that the kernel leaves to the rules in Python.
    return pod_entry(pod).requests
