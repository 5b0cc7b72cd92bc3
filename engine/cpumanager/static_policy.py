"""The static policy: exclusive CPUs for containers of Guaranteed pods that request whole CPUs.

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
from engine.api.quantity import NANO, Quantity
from engine.api.resources import CPU
from engine.cpumanager.options import StaticOptions
from engine.cpumanager.state import CpuState
from engine.cpumanager.topology import CpuTopology
from engine.topologymanager.policy import DENSE_NODES, Hint, Hints, Numa
from engine.topologymanager.provider import SMT_ALIGNMENT, AllocationError
from engine.topologymanager.search import DeviceCounts


def reserved_cpus(topology: CpuTopology, options: StaticOptions, amount: Quantity | None, named: int) -> int:
    """Return the CPUs that never become exclusive: those `named`, else as many as are reserved.

    `amount` is the sum of systemReserved and kubeReserved. Raises `InvalidInput` with the kubelet's
    messages.
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
    count = amount.value
    reserved = named or take(topology, options, topology.cpus, min(count, topology.cpus.bit_count()))
    if reserved.bit_count() != count or reserved & ~topology.cpus:
        raise InvalidInput(
            "[cpumanager] unable to reserve the required amount of CPUs "
            f"(size of {cpu_sets.text(reserved)} did not equal {count})",
            subject="reservedSystemCPUs" if named else "cpuManagerPolicy",
        )
    return reserved


def take(topology: CpuTopology, options: StaticOptions, available: int, count: int) -> int:
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


def exclusive_count(pod: Pod, container: Container) -> int:
    """Return the number of exclusive CPUs of a container: its request if that is whole and its
    pod Guaranteed.
    """
    if pod.spec.resources is not None or compute_qos_class(pod) != GUARANTEED:
        return 0
    requested = container.requests.get(CPU)
    if requested is None or requested.nano % NANO:
        return 0
    return requested.value


def pod_exclusive_count(pod: Pod) -> int:
    """Return the largest number of exclusive CPUs that the pod's containers need at the same time."""
    sidecars = most = 0
    for container in pod.init_containers:
        count = exclusive_count(pod, container)
        most = max(most, sidecars + count)
        if container.is_sidecar:
            sidecars += count
    return max(most, sidecars + sum(exclusive_count(pod, c) for c in pod.spec.containers))


class StaticPolicy:
    """A `HintProvider` that assigns the CPUs of `state`; `reserved` CPUs stay in the shared pool."""

    def __init__(
        self, topology: CpuTopology, reserved: int, options: StaticOptions, numa: Numa, state: CpuState
    ) -> None:
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
        count = exclusive_count(pod, container)
        if not count:
            return None
        held = self.state.held(pod.uid, container.name)
        if held is not None:
            return {CPU: self.hints(held, 0, count) if held.bit_count() == count else []}
        return {CPU: self.hints(self.available, self.reusable(pod, container), count)}

    def pod_hints(self, pod: Pod) -> Mapping[str, Hints] | None:
        """Return hints for the CPUs of all containers together."""
        count = pod_exclusive_count(pod)
        if not count:
            return None
        assigned = 0
        for container in pod.all_containers:
            held = self.state.held(pod.uid, container.name)
            if held is not None:
                if held.bit_count() != exclusive_count(pod, container):
                    return {CPU: []}
                assigned |= held
        if assigned.bit_count() == count:
            return {CPU: self.hints(assigned, 0, count)}
        return {CPU: self.hints(self.available, assigned, count)}

    def allocate(self, pod: Pod, container: Container, hint: Hint) -> None:
        """Assign CPUs to the container, as far as possible from the hint's NUMA nodes."""
        count = exclusive_count(pod, container)
        if not count or self.state.held(pod.uid, container.name) is not None:
            return
        self._check_whole_cores(count)
        free = self.available | self.reusable(pod, container)
        taken = 0
        if hint.mask is not None:
            near = self.of_mask(hint.mask)
            taken = self._take(free & near, min(count, (free & near).bit_count()))
        taken |= self._take(free & ~taken, count - taken.bit_count())
        self.state.assign(pod.uid, container.name, taken)

    def release(self, pod_uid: str) -> None:
        """Release all CPUs of the pod."""
        self.state.release_pod(pod_uid)

    def of_mask(self, mask: int) -> int:
        """The CPUs of a hint's NUMA nodes; with align-by-socket, of those nodes' sockets."""
        nodes = self._numa.ids(mask)
        return self.topology.of_sockets_of(nodes) if self.options.by_socket else self.topology.of_nodes(nodes)

    def _take(self, available: int, count: int) -> int:
        return take(self.topology, self.options, available, count)

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
