"""Computes the values of a pod's cgroup.

Source: kubelet v1.32 `ResourceConfigForPod`, KEP-2570 (memory QoS), KEP-2837 (pod-level resources); pinned
by `tests/conformance` (cgroup_pod).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine._fast.preemption.requests import amounts
from engine.api.amounts.cpu_weight import MIN_SHARES
from engine.api.pod import Pod, ResourceList
from engine.api.qos import BEST_EFFORT, GUARANTEED, qos_class
from engine.api.quantity import ZERO
from engine.api.resources import CPU, MEMORY, pod_limits, pod_requests
from engine.cgroups.formulas.conversion import (
    DEFAULT_PERIOD_US,
    UNLIMITED_QUOTA,
    huge_page_limits,
    milli_cpu_to_quota,
    milli_cpu_to_shares,
)
from engine.cgroups.formulas.file_names import MEMORY_LOW, MEMORY_MIN
from engine.cgroups.formulas.pod_annotations import NONE, DeviceNumber, as_written, read_annotations


class GroupValues(msgspec.Struct, frozen=True):
    """Hold the values of one cgroup; None keeps the kernel's value.

    Shares, quota, period and burst are in kernel units (microseconds), memory in bytes, huge pages as page
    size → limit in bytes, `unified` as cgroup v2 file → text. A cgroup that is `cpu_idle` has no shares: it
    runs only while nobody else wants the CPU.
    """

    cpu_shares: int | None = None
    cpu_quota: int | None = None
    cpu_period: int | None = None
    memory: int | None = None
    pids: int | None = None
    cpuset: str | None = None
    huge_pages: Mapping[int, int] = {}
    unified: Mapping[str, str] = {}
    cpu_burst: int | None = None
    cpu_idle: bool = False


class PodRules(msgspec.Struct, frozen=True):
    """Hold the settings that pod values depend on, resolved once from the configuration."""

    enforce_cpu_limits: bool = True
    cpu_period_us: int = DEFAULT_PERIOD_US
    custom_cpu_period: bool = False
    memory_qos: bool = False
    tiered_memory: bool = False
    pids_limit: int = -1
    annotations: frozenset[str] = frozenset()
    """The pod annotations that count, as in `pod_annotations`."""
    device_number: DeviceNumber = as_written


def pod_values(pod: Pod, rules: PodRules) -> GroupValues:
    """Return the pod cgroup's values. A limit counts only if every container declares one.

    Raises `InvalidInput` for an enabled annotation with a bad value.
    """
    values = _by_resources(pod, rules)
    asked = read_annotations(pod, rules.annotations, rules.device_number)
    if asked is NONE:
        return values
    burst = asked.burst(values.cpu_quota)
    return msgspec.structs.replace(
        values, unified={**values.unified, **asked.pod_files()}, cpu_burst=burst if asked.cpu_burst else None
    )


def _by_resources(pod: Pod, rules: PodRules) -> GroupValues:
    found = amounts(pod)
    if found is None or not pod.spec.containers:
        return _values_by_the_rule(pod, rules)
    pod_class, with_cpu, with_memory, cpu, memory, cpu_limit, memory_limit = found
    protection = {}
    if rules.memory_qos and memory > 0:
        soft = rules.tiered_memory and pod_class != GUARANTEED
        protection = {MEMORY_LOW if soft else MEMORY_MIN: str(memory)}
    pids = rules.pids_limit if rules.pids_limit > 0 else None
    if pod_class == BEST_EFFORT:
        return GroupValues(MIN_SHARES, None, None, None, pids, None, {}, protection)
    quota = period = None
    if with_cpu or pod_class == GUARANTEED:
        period = rules.cpu_period_us
        quota = UNLIMITED_QUOTA
        if rules.enforce_cpu_limits:
            quota = milli_cpu_to_quota(cpu_limit, period, custom_period=rules.custom_cpu_period)
    limit = memory_limit if with_memory or pod_class == GUARANTEED else None
    return GroupValues(milli_cpu_to_shares(cpu), quota, period, limit, pids, None, {}, protection)


def _values_by_the_rule(pod: Pod, rules: PodRules) -> GroupValues:
    requests = pod_requests(pod)
    limits = pod_limits(pod)
    period = rules.cpu_period_us
    quota = (
        milli_cpu_to_quota(limits.get(CPU, ZERO).milli, period, custom_period=rules.custom_cpu_period)
        if rules.enforce_cpu_limits
        else UNLIMITED_QUOTA
    )
    pod_class = qos_class(pod)
    common = {
        "huge_pages": huge_page_limits(requests),
        "unified": _protection(pod_class, requests, rules),
        "pids": rules.pids_limit if rules.pids_limit > 0 else None,
    }
    if pod_class == BEST_EFFORT:
        return GroupValues(cpu_shares=MIN_SHARES, **common)  # type: ignore[arg-type]
    with_cpu, with_memory = limits_declared(pod)
    if pod_class == GUARANTEED:
        with_cpu = with_memory = True
    return GroupValues(
        cpu_shares=milli_cpu_to_shares(requests.get(CPU, ZERO).milli),
        cpu_quota=quota if with_cpu else None,
        cpu_period=period if with_cpu else None,
        memory=limits.get(MEMORY, ZERO).value if with_memory else None,
        **common,  # type: ignore[arg-type]
    )


def _protection(pod_class: str, requests: ResourceList, rules: PodRules) -> dict[str, str]:
    amount = requests.get(MEMORY, ZERO).value if rules.memory_qos else 0
    if amount <= 0:
        return {}
    soft = rules.tiered_memory and pod_class != GUARANTEED
    return {MEMORY_LOW if soft else MEMORY_MIN: str(amount)}


def limits_declared(pod: Pod) -> tuple[bool, bool]:
    """Tell whether CPU, and memory, are limited for the whole pod.

    Either `spec.resources` limits them, or every container does, where an init container also counts the
    limits of the sidecars before it.
    """
    cpu = memory = True
    for container in pod.spec.containers:
        cpu = cpu and bool(container.limits.get(CPU))
        memory = memory and bool(container.limits.get(MEMORY))
    sidecar_cpu = sidecar_memory = False
    for container in pod.init_containers:
        has_cpu = sidecar_cpu or bool(container.limits.get(CPU))
        has_memory = sidecar_memory or bool(container.limits.get(MEMORY))
        if container.is_sidecar:
            sidecar_cpu, sidecar_memory = has_cpu, has_memory
        cpu, memory = cpu and has_cpu, memory and has_memory
    if pod.spec.resources is not None:
        pod_level = pod.spec.resources.limits or {}
        cpu = cpu or bool(pod_level.get(CPU))
        memory = memory or bool(pod_level.get(MEMORY))
    return cpu, memory
