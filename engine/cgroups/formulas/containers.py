"""Computes the resource values of a container, which go to the runtime.

Source: kubelet v1.32 `kuberuntime` package and `qos` policy, KEP-2400 (swap), KEP-2570 (memory QoS),
KEP-2837 (pod-level resources); pinned by `tests/conformance` (cgroup_container).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from engine.api.amounts.cpu_weight import MIN_SHARES
from engine.api.pod import Container, Pod
from engine.api.qos import BEST_EFFORT, BURSTABLE, GUARANTEED, is_critical, is_node_critical, qos_class
from engine.api.quantity import ZERO, Quantity
from engine.api.resources import CPU, MEMORY, pod_limits, pod_requests
from engine.api.status import ResourceAmounts
from engine.cgroups.formulas.conversion import (
    DEFAULT_PERIOD_US,
    huge_page_limits,
    huge_page_name,
    milli_cpu_to_quota,
    milli_cpu_to_shares,
    quota_to_milli_cpu,
    shares_to_milli_cpu,
)
from engine.cgroups.formulas.file_names import (
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_MIN,
    MEMORY_OOM_GROUP,
    MEMORY_SWAP_MAX,
)
from engine.cgroups.formulas.pod_annotations import UNLIMITED, as_written, read_annotations

GUARANTEED_OOM_SCORE_ADJ = -997
BEST_EFFORT_OOM_SCORE_ADJ = 1000
LIMITED_SWAP = "LimitedSwap"
LEAST_SHOWN_MILLI_CPU = 10


class ContainerResources(msgspec.Struct, frozen=True):
    """Hold the fields of CRI `LinuxContainerResources`, under the same names; 0 means not set."""

    cpu_period: int = 0
    cpu_quota: int = 0
    cpu_shares: int = 0
    memory_limit_in_bytes: int = 0
    oom_score_adj: int = 0
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    hugepage_limits: Mapping[str, int] = msgspec.field(default_factory=dict)
    unified: Mapping[str, str] = msgspec.field(default_factory=dict)
    memory_swap_limit_in_bytes: int = 0


class ContainerRules(msgspec.Struct, frozen=True):
    """Hold the properties of node and configuration that container values depend on; memory in bytes."""

    memory_capacity: int
    allocatable_memory: int = 0
    enforce_cpu_limits: bool = True
    cpu_period_us: int = DEFAULT_PERIOD_US
    custom_cpu_period: bool = False
    memory_qos: bool = False
    memory_reserved: bool = True
    """With `memory_qos`: requests are protected as well as throttled towards limits."""
    tiered_memory: bool = False
    throttling_factor: float = 0.9
    page_size: int = 4096
    cgroup_v2: bool = False
    swap_controller: bool = False
    swap_capacity: int = 0
    swap_behavior: str = ""
    single_process_oom_kill: bool = True
    huge_page_sizes: tuple[int, ...] = ()
    annotations: frozenset[str] = frozenset()
    """The pod annotations that count, as in `pod_annotations`."""


def container_resources(pod: Pod, container: Container, rules: ContainerRules) -> ContainerResources:
    """Return the values of one container; the CPU request defaults to its limit.

    Raises `InvalidInput` for an enabled annotation with a bad value.
    """
    limits = {name: effective_limit(pod, container, name) for name in (CPU, MEMORY)}
    basic = _basic_resources(container.requests.get(CPU), limits, rules)
    huge = huge_page_limits(container.limits)
    unified = dict(basic.unified)
    memory_swap = 0
    if rules.swap_controller and not rules.cgroup_v2:
        # On cgroup v1 this limit is of memory and swap together: equal to the memory limit, it leaves no
        # swap.
        memory_swap = basic.memory_limit_in_bytes
    elif rules.swap_controller:
        unified[MEMORY_SWAP_MAX] = str(swap_limit(pod, container, rules))
    if rules.memory_qos:
        unified |= _memory_qos(pod, container, rules)
    if rules.annotations and rules.cgroup_v2:
        unified = read_annotations(pod, rules.annotations, as_written).container_files(unified)
    return replace(
        basic,
        oom_score_adj=oom_score_adj(pod, container, rules.memory_capacity),
        hugepage_limits={huge_page_name(size): huge.get(size, 0) for size in rules.huge_page_sizes},
        unified=unified,
        memory_swap_limit_in_bytes=memory_swap,
    )


def sandbox_resources(pod: Pod, rules: ContainerRules) -> ContainerResources:
    """Return the sum of a pod's containers, which the runtime gets with the sandbox."""
    without_overhead = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, overhead=None))
    requests = pod_requests(without_overhead)
    return _basic_resources(requests.get(CPU), pod_limits(without_overhead), rules)


def overhead_resources(pod: Pod, rules: ContainerRules) -> ContainerResources:
    """Return a pod's overhead; nothing is set for a pod without."""
    overhead = pod.spec.overhead
    if overhead is None:
        return ContainerResources()
    return _basic_resources(overhead.get(CPU, ZERO), overhead, rules)


def _basic_resources(
    cpu_request: Quantity | None, limits: Mapping[str, Quantity], rules: ContainerRules
) -> ContainerResources:
    cpu_limit = limits.get(CPU, ZERO).milli
    period = rules.cpu_period_us if rules.custom_cpu_period else DEFAULT_PERIOD_US
    return ContainerResources(
        cpu_period=period if rules.enforce_cpu_limits else 0,
        cpu_quota=milli_cpu_to_quota(cpu_limit, period) if rules.enforce_cpu_limits else 0,
        cpu_shares=milli_cpu_to_shares(cpu_limit if cpu_request is None else cpu_request.milli),
        memory_limit_in_bytes=limits.get(MEMORY, ZERO).value,
        unified={MEMORY_OOM_GROUP: "1"} if rules.cgroup_v2 and not rules.single_process_oom_kill else {},
    )


def effective_limit(pod: Pod, container: Container, resource: str) -> Quantity:
    """Return the container's own limit, or the pod's (KEP-2837)."""
    own = container.limits.get(resource, ZERO)
    if not own and pod.spec.resources is not None:
        return (pod.spec.resources.limits or {}).get(resource, ZERO)
    return own


def _memory_qos(pod: Pod, container: Container, rules: ContainerRules) -> dict[str, str]:
    request = container.requests.get(MEMORY, ZERO).value
    limit = effective_limit(pod, container, MEMORY).value
    unified: dict[str, str] = {}
    if request and rules.memory_reserved:
        soft = rules.tiered_memory and qos_class(pod) != GUARANTEED
        unified[MEMORY_LOW if soft else MEMORY_MIN] = str(request)
    # A container whose request is its limit has nothing to be throttled towards (KEP-2570).
    if request != limit:
        high = memory_high(request, limit or rules.allocatable_memory, rules)
        if high > request:
            unified[MEMORY_HIGH] = str(high)
    return unified


def memory_high(request: int, ceiling: int, rules: ContainerRules) -> int:
    """Return `memory.high`: this share of the way from request to `ceiling`, rounded down to pages.

    Computed in doubles as by the kubelet; 0 without a ceiling.
    """
    if ceiling <= 0:
        return 0
    mark = float(request) + (float(ceiling) - float(request)) * rules.throttling_factor
    return int(mark // 1 / rules.page_size) * rules.page_size


def may_swap(pod: Pod, container: Container, rules: ContainerRules) -> bool:
    """Tell whether a container may swap under cgroup v2 and LimitedSwap (KEP-2400).

    It may in a Burstable pod that is not critical, unless it has all of its memory guaranteed.
    """
    limited = rules.swap_behavior == LIMITED_SWAP and rules.swap_controller and rules.cgroup_v2
    if not limited or qos_class(pod) != BURSTABLE or is_critical(pod):
        return False
    return container.requests.get(MEMORY, ZERO) != container.limits.get(MEMORY, ZERO)


def swap_limit(pod: Pod, container: Container, rules: ContainerRules) -> int:
    """Return the swap limit in bytes: of the node's swap the share that the container requests of the node's
    memory; 0 if it may not swap.
    """
    request = container.requests.get(MEMORY, ZERO)
    if not may_swap(pod, container, rules):
        return 0
    if rules.memory_capacity <= 0 or request.value > rules.memory_capacity:
        return 0
    return int(float(request.value) / float(rules.memory_capacity) * float(rules.swap_capacity))


def pod_swap_limit(pod: Pod, rules: ContainerRules) -> int:
    """Return the bytes that all containers of the pod may swap, which is none on cgroup v1.

    An enabled annotation decides, or else the sum of the containers.
    """
    if not rules.swap_controller or not rules.cgroup_v2:
        return 0
    asked = read_annotations(pod, rules.annotations, as_written).swap
    if asked:
        return rules.swap_capacity if asked == UNLIMITED else int(asked)
    lasting = [*(c for c in pod.init_containers if c.is_sidecar), *pod.spec.containers]
    return sum(swap_limit(pod, container, rules) for container in lasting)


def oom_score_adj(pod: Pod, container: Container, memory_capacity: int) -> int:
    """Return oom_score_adj.

    −997 for Guaranteed and node-critical pods, 1000 for BestEffort; in between, from 3 to 999, lower for
    larger memory requests. A sidecar's is at most that of the smallest regular container.
    """
    pod_class = qos_class(pod)
    if is_node_critical(pod) or pod_class == GUARANTEED:
        return GUARANTEED_OOM_SCORE_ADJ
    if pod_class == BEST_EFFORT:
        return BEST_EFFORT_OOM_SCORE_ADJ
    extra = unassigned_memory(pod)
    score = _score(container.requests.get(MEMORY, ZERO).value + extra, memory_capacity)
    if container.is_sidecar and any(c is container for c in pod.init_containers):
        smallest = min(c.requests.get(MEMORY, ZERO).value for c in pod.spec.containers)
        score = min(score, _score(smallest + extra, memory_capacity))
    if score < 1000 + GUARANTEED_OOM_SCORE_ADJ:
        return 1000 + GUARANTEED_OOM_SCORE_ADJ
    return score - 1 if score == BEST_EFFORT_OOM_SCORE_ADJ else score


def _score(request: int, capacity: int) -> int:
    return 1000 - 1000 * request // capacity if capacity > 0 else 0


def unassigned_memory(pod: Pod) -> int:
    """Return each container's part of a pod-level memory request that no container claims."""
    requests = (pod.spec.resources and pod.spec.resources.requests) or {}
    if MEMORY not in requests:
        return 0
    sharers = [*pod.spec.containers, *(c for c in pod.init_containers if c.is_sidecar)]
    asked = sum(c.requests.get(MEMORY, ZERO).value for c in sharers)
    return max(requests[MEMORY].value - asked, 0) // max(len(sharers), 1)


def status_resources(allocated: Container, actual: ContainerResources) -> ResourceAmounts:
    """Return `status.containerStatuses[].resources`: the actual resources according to the runtime.

    The runtime's amounts replace the allocated ones, spelled as the kubelet converts them: CPU in
    thousandths, memory in bytes with binary suffixes (`8M` becomes `8000000`). CPU amounts that are
    too small to survive the conversion stay as allocated, and so do all other resources. A container
    with any limit also shows the limits that it has from its pod.
    """
    requests, limits = allocated.requests, allocated.limits
    if requests and actual.cpu_shares > 0:
        milli = shares_to_milli_cpu(actual.cpu_shares)
        if milli and max(milli, requests.get(CPU, ZERO).milli) > MIN_SHARES:
            requests = _with(requests, CPU, Quantity.from_milli(milli))
    if limits and actual.cpu_quota > 0 and actual.cpu_period > 0:
        milli = quota_to_milli_cpu(actual.cpu_quota, actual.cpu_period)
        if milli and max(milli, limits.get(CPU, ZERO).milli) > LEAST_SHOWN_MILLI_CPU:
            limits = _with(limits, CPU, Quantity.from_milli(milli))
    if limits and actual.memory_limit_in_bytes > 0:
        limits = _with(limits, MEMORY, Quantity.from_value(actual.memory_limit_in_bytes, "BinarySI"))
    return ResourceAmounts(requests=requests or None, limits=limits or None)


def _with(amounts: dict[str, Quantity], name: str, amount: Quantity) -> dict[str, Quantity]:
    """Return the amounts with another one, or the given ones if it is written there already.

    The status of most containers then shares the amounts of their spec, which saves memory for each pod.
    """
    return amounts if str(amounts.get(name)) == str(amount) else {**amounts, name: amount}
