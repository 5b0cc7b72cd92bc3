"""Decides by the static policy: exclusive CPUs for containers of Guaranteed pods that request whole CPUs.

Rules: kubelet v1.36 `cpumanager/policy_static.go`. Pure: `CpuManager` stores the state on disk and calls the
runtime.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from engine._fast.devices import topology as topology_kernels
from engine._fast.pinning import cpu_assignment as kernels
from engine.api import cpu_set as cpu_sets
from engine.api.errors import InvalidInput
from engine.api.pod import Container, Pod
from engine.api.qos import GUARANTEED, compute_qos_class
from engine.api.quantity import ZERO, Quantity
from engine.api.resources import CPU, has_equal_amounts, has_pod_level_resources
from engine.cpumanager.options import StaticOptions
from engine.cpumanager.state import CpuState
from engine.cpumanager.topology import CpuTopology
from engine.topologymanager.policy import DENSE_NODES, Hint, Hints, Numa
from engine.topologymanager.provider import EMPTY_POD_SHARED_POOL, SMT_ALIGNMENT, AllocationError
from engine.topologymanager.search import DeviceCounts


def check_reserved_amount(amount: Quantity | None) -> Quantity:
    """Return the CPU that systemReserved and kubeReserved reserve together.

    Raises `InvalidInput` with the kubelet's messages if that is none.
    """
    if amount is None:
        raise InvalidInput(
            "[cpumanager] unable to determine reserved CPU resources for static policy",
            subject="cpuManagerPolicy",
        )
    if amount.nano <= 0:
        raise InvalidInput(
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater "
            "than zero",
            subject="cpuManagerPolicy",
        )
    return amount


def reserved_cpus(topology: CpuTopology, options: StaticOptions, amount: Quantity | None, named: int) -> int:
    """Return the CPUs that never become exclusive: those `named`, else as many as `amount` reserves.

    Raises `InvalidInput` with the kubelet's messages.
    """
    count = check_reserved_amount(amount).value
    enough = count <= topology.cpus.bit_count()
    reserved = named or (take_by_topology(topology, options, topology.cpus, count) if enough else 0)
    if reserved.bit_count() != count or reserved & ~topology.cpus:
        raise InvalidInput(
            "[cpumanager] unable to reserve the required amount of CPUs "
            f"(size of {cpu_sets.text(reserved)} did not equal {count})",
            subject="reservedSystemCPUs" if named else "cpuManagerPolicy",
        )
    return reserved


def take_by_topology(topology: CpuTopology, options: StaticOptions, available: int, count: int) -> int:
    """Choose `count` of the available CPUs according to the options; raises `AllocationError` if there are
    too few.
    """
    if count > available.bit_count():
        raise AllocationError(
            "not enough cpus available to satisfy request: "
            f"requested={count}, available={available.bit_count()}"
        )
    if options.across_numa:
        group = topology.threads_per_core if options.full_pcpus else 1
        return kernels.take_distributed(topology.layout, available, count, group, spread=options.across_cores)
    return kernels.take_packed(
        topology.layout,
        available,
        count,
        spread=options.across_cores,
        whole_caches=options.by_cache,
    )


def exclusive_count(pod: Pod, container: Container, *, pod_level: bool = False) -> int:
    """Return the number of exclusive CPUs of a container: its request if that is whole and its
    pod Guaranteed.

    In a pod with pod-level resources, and `pod_level` for PodLevelResourceManagers, the container's requests
    must equal its limits, too. Without the gate such pods have none.
    """
    if compute_qos_class(pod) != GUARANTEED:
        return 0
    if has_pod_level_resources(pod) and not (pod_level and has_equal_amounts(container)):
        return 0
    return _whole(container.requests.get(CPU, ZERO))


def _whole(amount: Quantity) -> int:
    """Return an amount of CPU if it is whole to a thousandth, else 0."""
    return amount.value if amount.milli == amount.value * 1000 else 0


def pod_exclusive_count(pod: Pod, *, pod_level: bool = False) -> int:
    """Return the largest number of exclusive CPUs that the pod's containers need at the same time, or that
    its pod-level resources request.
    """
    if has_pod_level_resources(pod):
        assert pod.spec.resources is not None
        requests = pod.spec.resources.requests or {}
        return _whole(requests.get(CPU, ZERO)) if pod_level and compute_qos_class(pod) == GUARANTEED else 0
    sidecars = most = 0
    for container in pod.init_containers:
        count = exclusive_count(pod, container)
        most = max(most, sidecars + count)
        if container.is_sidecar:
            sidecars += count
    return max(most, sidecars + sum(exclusive_count(pod, c) for c in pod.spec.containers))


def check_shared_cpus(pod: Pod) -> None:
    """Raise `AllocationError` if a pod's exclusive containers leave no CPU of its pod-level resources to its
    other containers.
    """
    total = pod_exclusive_count(pod, pod_level=True)
    exclusive = 0
    shared = False
    for container in pod.all_containers:
        count = exclusive_count(pod, container, pod_level=True)
        if container in pod.init_containers and not container.is_sidecar:
            if not count and exclusive >= total:
                raise AllocationError(
                    "pod rejected, pod has shared init containers but no cpus available for them",
                    EMPTY_POD_SHARED_POOL,
                )
            continue
        exclusive += count
        shared |= not count
    if shared and exclusive >= total:
        raise AllocationError(
            "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for "
            "shared containers",
            EMPTY_POD_SHARED_POOL,
        )


class StaticCpuPolicy:
    """Assign the CPUs of `state` as a `HintProvider`; `reserved` CPUs stay in the shared pool.

    With `pod_level` (PodLevelResourceManagers) it assigns CPUs to pods with pod-level resources, too.
    """

    def __init__(
        self,
        topology: CpuTopology,
        reserved: int,
        options: StaticOptions,
        numa: Numa,
        state: CpuState,
        *,
        pod_level: bool = False,
    ) -> None:
        self.pod_level = pod_level
        self.topology = topology
        self.reserved = reserved
        self.options = options
        self.state = state
        self._numa = numa
        self._reserved_cores = topology.with_siblings(reserved)
        self._per_node = topology.per_node(topology.cpus, numa)

    @property
    def allocatable(self) -> int:
        """Return the CPUs that can become exclusive, assigned or not."""
        return self.topology.cpus & ~self.reserved

    @property
    def available(self) -> int:
        """Return the CPUs that a container can get now."""
        return self.state.shared & self.topology.cpus & ~self.reserved

    def reusable(self, pod: Pod, container: Container | None = None) -> int:
        """Return CPUs of the pod's ordinary init containers that are free while `container` runs.

        Without a container: those that are free once all containers run.
        """
        found = 0
        for one in pod.all_containers:
            if container is not None and one.name == container.name:
                break
            held = self.state.held(pod.uid, one.name) or 0
            if one in pod.init_containers and not one.is_sidecar:
                found |= held
            else:
                found &= ~held
        return found & self.topology.cpus

    def container_hints(self, pod: Pod, container: Container) -> Mapping[str, Hints] | None:
        """Return hints for the container's CPUs; if it already has CPUs, the hint for those."""
        count = self.count(pod, container)
        if not count:
            return None
        held = self.state.held(pod.uid, container.name)
        if held is not None:
            return {CPU: self.hints(held, 0, count) if held.bit_count() == count else []}
        return {CPU: self.hints(self.available, self.reusable(pod, container), count)}

    def pod_hints(self, pod: Pod) -> Mapping[str, Hints] | None:
        """Return hints for the CPUs of all containers together."""
        count = self.pod_count(pod)
        if not count:
            return None
        if has_pod_level_resources(pod):
            return {CPU: self._whole_pod_hints(pod, count)}
        assigned = 0
        for container in pod.all_containers:
            held = self.state.held(pod.uid, container.name)
            if held is not None:
                if held.bit_count() != self.count(pod, container):
                    return {CPU: []}
                assigned |= held
        if assigned.bit_count() == count:
            return {CPU: self.hints(assigned, 0, count)}
        return {CPU: self.hints(self.available, assigned, count)}

    def _whole_pod_hints(self, pod: Pod, count: int) -> Hints:
        """Return hints for a pod's pod-level CPUs; none if its containers cannot share them."""
        held = self.state.pods.get(pod.uid)
        if held is not None:
            return self.hints(held, 0, count) if held.bit_count() == count else []
        try:
            check_shared_cpus(pod)
        except AllocationError:
            return []
        return self.hints(self.available, 0, count)

    def count(self, pod: Pod, container: Container) -> int:
        """Return the number of exclusive CPUs of a container."""
        return exclusive_count(pod, container, pod_level=self.pod_level)

    def pod_count(self, pod: Pod) -> int:
        """Return the number of exclusive CPUs of a pod."""
        return pod_exclusive_count(pod, pod_level=self.pod_level)

    def allocate(self, pod: Pod, container: Container, hint: Hint) -> None:
        """Assign CPUs to the container, as far as possible from the hint's NUMA nodes."""
        count = self.count(pod, container)
        if not count or self.state.held(pod.uid, container.name) is not None:
            return
        self._check_whole_cores(count)
        taken = self._take_near(self.available | self.reusable(pod, container), count, hint)
        self.state.assign(pod.uid, container.name, taken)

    def allocate_pod(self, pod: Pod, hint: Hint) -> None:
        """Assign the CPUs of a pod's pod-level resources, and divide them among its containers.

        A container without exclusive CPUs gets those that the pod's other containers leave; one that ends
        before the others start gets all but those of earlier sidecars.
        """
        count = self.pod_count(pod)
        if not count or pod.uid in self.state.pods:
            return
        check_shared_cpus(pod)
        self._check_whole_cores(count)
        of_pod = left = self._take_near(self.available, count, hint)
        found: dict[str, int] = {}
        for container in pod.all_containers:
            wanted = self.count(pod, container)
            taken = self._take(left, wanted) if wanted else 0
            if container in pod.init_containers and not container.is_sidecar:
                found[container.name] = taken or left
            elif taken:
                found[container.name] = taken
                left &= ~taken
        for container in pod.all_containers:
            self.state.assign(pod.uid, container.name, found.get(container.name, left))
        self.state.pods[pod.uid] = of_pod

    def _take_near(self, free: int, count: int, hint: Hint) -> int:
        """Choose free CPUs, those of the hint's NUMA nodes first."""
        taken = 0
        if hint.mask is not None:
            near = self.of_mask(hint.mask)
            taken = self._take(free & near, min(count, (free & near).bit_count()))
        return taken | self._take(free & ~taken, count - taken.bit_count())

    def release(self, pod_uid: str) -> None:
        """Release all CPUs of the pod."""
        self.state.release_pod(pod_uid)

    def of_mask(self, mask: int) -> int:
        """Return the CPUs of a hint's NUMA nodes; with align-by-socket, of those nodes' sockets."""
        nodes = self._numa.ids(mask)
        return self.topology.of_sockets_of(nodes) if self.options.by_socket else self.topology.of_nodes(nodes)

    def _take(self, available: int, count: int) -> int:
        return take_by_topology(self.topology, self.options, available, count)

    def _check_whole_cores(self, count: int) -> None:
        threads = self.topology.threads_per_core
        if not self.options.full_pcpus:
            return
        if count % threads:
            raise AllocationError(
                f"SMT Alignment Error: requested {count} cpus not multiple cpus per core = {threads}",
                SMT_ALIGNMENT,
            )
        free = (self.state.shared & ~self._reserved_cores).bit_count()
        if count > free:
            raise AllocationError(
                "SMT Alignment Error: not enough free physical CPUs: "
                f"available physical CPUs = {free}, requested CPUs = {count}, CPUs per core = {threads}",
                SMT_ALIGNMENT,
            )

    def hints(self, available: int, reusable: int, count: int) -> Hints:
        """Return the sets of NUMA nodes with enough CPUs, all `reusable` ones included.

        Those with the fewest nodes are preferred.
        """
        groups = tuple(i for i, total in enumerate(self._per_node) if total)
        counts = DeviceCounts(
            groups=tuple(1 << i for i in groups),
            everything=tuple(self._per_node[i] for i in groups),
            available=self._counted(available & ~reusable, groups),
            reusable=self._counted(reusable, groups),
            request=count,
        )
        if not self.options.by_socket or len(self._numa.nodes) > DENSE_NODES:
            return counts
        return self._prefer_few_sockets(counts, count)

    def _counted(self, cpus: int, groups: tuple[int, ...]) -> tuple[int, ...]:
        per_node = self.topology.per_node(cpus, self._numa)
        return tuple(per_node[i] for i in groups)

    def _prefer_few_sockets(self, counts: DeviceCounts, count: int) -> Hints:
        """Apply align-by-socket: also prefer a set of nodes on the minimal number of sockets."""
        layout = self.topology.layout
        flags = counts.flags(len(self._numa.nodes))
        fewest = len(layout.nodes)
        left = count
        for size, total in enumerate(sorted(self._per_node, reverse=True), 1):
            left -= total
            if left <= 0:
                fewest = min(fewest, size)
                break
        sockets_needed = -(-fewest // (len(layout.nodes) // len(layout.sockets)))
        masks = np.arange(len(flags))
        touched = np.zeros(len(flags), np.int64)
        for members in layout.sockets.values():
            nodes = [node for node in layout.nodes if layout.nodes[node] & members]
            touched += (masks & self._numa.mask(nodes)) != 0
        flags[(flags != 0) & (touched == sockets_needed)] = topology_kernels.PREFERRED
        return flags
