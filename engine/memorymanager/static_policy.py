"""Decides by the Static policy: memory and huge pages of Guaranteed pods come from chosen NUMA nodes.

Rules: kubelet v1.36 `memorymanager/policy_static.go`. Pure: `MemoryManager` stores the state on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile, takewhile

from engine.api.pod import Container, EphemeralContainer, Pod, ResourceList
from engine.api.qos import GUARANTEED, compute_qos_class
from engine.api.quantity import NANO
from engine.api.resources import MEMORY, has_equal_amounts, has_pod_level_resources, is_hugepage
from engine.memorymanager.hints import MemoryHints
from engine.memorymanager.state import UNSIGNED, Block, MemoryState
from engine.topologymanager.policy import DENSE_NODES, Hint, Hints, Numa
from engine.topologymanager.provider import EMPTY_POD_SHARED_POOL, AllocationError, CannotResize


def wanted_memory(pod: Pod, container: Container, *, pod_level: bool = False) -> dict[str, int]:
    """Return the bytes of memory and huge pages to reserve for the container, by type in order of name.

    In a pod with pod-level resources, and `pod_level` for PodLevelResourceManagers, the container's requests
    must equal its limits. Without the gate such pods get none. Raises `AllocationError` for parts of a byte.
    """
    if compute_qos_class(pod) != GUARANTEED:
        return {}
    if has_pod_level_resources(pod) and not (pod_level and has_equal_amounts(container)):
        return {}
    return _bytes(container.requests)


def _bytes(requests: ResourceList) -> dict[str, int]:
    found = {}
    for kind in sorted(requests):
        if kind == MEMORY or is_hugepage(kind):
            if requests[kind].nano % NANO:
                raise AllocationError("[memorymanager] failed to represent quantity as int64")
            found[kind] = requests[kind].value
    return found


def pod_wanted_memory(pod: Pod, *, pod_level: bool = False) -> dict[str, int]:
    """Return the largest amounts that the pod's containers need at the same time, or those of its pod-level
    resources, by type in order of name. Raises `AllocationError` for parts of a byte.
    """
    if has_pod_level_resources(pod):
        assert pod.spec.resources is not None
        if not pod_level or compute_qos_class(pod) != GUARANTEED:
            return {}
        return {kind: size for kind, size in _bytes(pod.spec.resources.requests or {}).items() if size}
    sidecars: dict[str, int] = {}
    most: dict[str, int] = {}
    apps: dict[str, int] = {}
    for container in pod.init_containers:
        for kind, size in wanted_memory(pod, container).items():
            most[kind] = max(most.get(kind, 0), sidecars.get(kind, 0) + size)
            if container.is_sidecar:
                sidecars[kind] = sidecars.get(kind, 0) + size
    for container in pod.spec.containers:
        for kind, size in wanted_memory(pod, container).items():
            apps[kind] = apps.get(kind, 0) + size
    return {kind: max(most.get(kind, 0), apps[kind] + sidecars.get(kind, 0)) for kind in sorted(apps)}


def check_shared_memory(pod: Pod) -> None:
    """Raise `AllocationError` if a pod's exclusive containers leave none of its pod-level memory, or huge
    pages of a size, to its other containers.
    """
    total = pod_wanted_memory(pod, pod_level=True)
    exclusive = dict.fromkeys(total, 0)
    shared = False
    for container in pod.all_containers:
        wanted = wanted_memory(pod, container, pod_level=True)
        used_up = [kind for kind in total if exclusive[kind] >= total[kind]]
        if container in pod.init_containers and not container.is_sidecar:
            if not wanted and used_up:
                raise AllocationError(
                    f"pod rejected, pod has shared init containers but no {used_up[0]} available for them",
                    EMPTY_POD_SHARED_POOL,
                )
            continue
        shared |= not wanted
        for kind in wanted:
            exclusive[kind] = exclusive.get(kind, 0) + wanted[kind]
    used_up = [kind for kind in total if exclusive[kind] >= total[kind]]
    if shared and used_up:
        raise AllocationError(
            f"pod rejected, sum of exclusive container {used_up[0]} requests equals pod budget, leaving no "
            "memory for shared containers",
            EMPTY_POD_SHARED_POOL,
        )


def _sum_of(one: dict[int, dict[str, int]], other: dict[int, dict[str, int]]) -> dict[int, dict[str, int]]:
    """Add two amounts of memory, by mask of nodes and type."""
    total = {mask: dict(kinds) for mask, kinds in one.items()}
    for mask, kinds in other.items():
        for kind, size in kinds.items():
            total.setdefault(mask, {})[kind] = total.get(mask, {}).get(kind, 0) + size
    return total


class StaticMemoryPolicy:
    """Reserve the memory of `state` for containers, as a `HintProvider`.

    With `pod_level` (PodLevelResourceManagers) it reserves memory for pods with pod-level resources, too.
    """

    def __init__(self, numa: Numa, state: MemoryState, *, pod_level: bool = False) -> None:
        self.pod_level = pod_level
        self.state = state
        self._numa = numa

    def container_hints(self, pod: Pod, container: Container) -> Mapping[str, Hints] | None:
        """Return hints for the container's memory; if it already has blocks, the hint for those."""
        try:
            wanted = self.wanted(pod, container)
        except AllocationError:
            return None
        if not wanted:
            return None
        blocks = self.state.held(pod.uid, container.name)
        if blocks is not None:
            return self._hints_of(blocks, wanted)
        return self._hints(wanted, _sum_of(self._reusable(pod, container), self._borrowed(pod, container)))

    def pod_hints(self, pod: Pod) -> Mapping[str, Hints] | None:
        """Return hints for the memory of all containers together."""
        try:
            wanted = self.pod_wanted(pod)
        except AllocationError:
            return None
        if not wanted:
            return None
        if has_pod_level_resources(pod):
            return self._whole_pod_hints(pod, wanted)
        for container in pod.all_containers:
            blocks = self.state.held(pod.uid, container.name)
            if blocks is not None:
                return self._hints_of(blocks, wanted)
        return self._hints(wanted, {})

    def _whole_pod_hints(self, pod: Pod, wanted: Mapping[str, int]) -> dict[str, Hints] | None:
        """Return hints for a pod's pod-level memory; none if its containers cannot share it."""
        blocks = self.state.pods.get(pod.uid)
        if blocks is not None:
            return self._hints_of(blocks, wanted)
        try:
            check_shared_memory(pod)
        except AllocationError:
            return {kind: [] for kind in wanted}
        return self._hints(wanted, {})

    def wanted(self, pod: Pod, container: Container) -> dict[str, int]:
        """Return the bytes to reserve for a container, by type. Raises `AllocationError`."""
        return wanted_memory(pod, container, pod_level=self.pod_level)

    def pod_wanted(self, pod: Pod) -> dict[str, int]:
        """Return the bytes to reserve for a pod, by type. Raises `AllocationError`."""
        return pod_wanted_memory(pod, pod_level=self.pod_level)

    def allocate_pod(self, pod: Pod, hint: Hint) -> None:
        """Reserve the memory of a pod's pod-level resources, and divide it among its containers.

        A container without exclusive memory has what the pod's other containers leave; one that ends before
        the others start has all but that of earlier sidecars.
        """
        total = self.pod_wanted(pod)
        if not total or pod.uid in self.state.pods:
            return
        check_shared_memory(pod)
        nodes = self._numa.ids(self._place(pod, total, {}, hint))
        left = dict(total)
        found: dict[str, dict[str, int]] = {}
        for container in pod.all_containers:
            wanted = {kind: size for kind, size in self.wanted(pod, container).items() if size}
            if container in pod.init_containers and not container.is_sidecar:
                found[container.name] = wanted or dict(left)
            elif wanted:
                found[container.name] = wanted
                for kind in wanted.keys() & left.keys():
                    left[kind] = max(left[kind] - wanted[kind], 0)
        for kind, size in total.items():
            self.state.use(nodes, kind, size)
        for container in pod.all_containers:
            sizes = found.get(container.name, left)
            blocks = tuple(Block(nodes, kind, size) for kind, size in sizes.items() if size)
            self.state.assign(pod.uid, container.name, blocks)
        self.state.pods[pod.uid] = tuple(Block(nodes, kind, size) for kind, size in total.items())

    def allocate(self, pod: Pod, container: Container, hint: Hint) -> None:
        """Reserve the container's memory on the hint's NUMA nodes, or on more nodes if those do
        not suffice.
        """
        wanted = self.wanted(pod, container)
        if not wanted or self.state.held(pod.uid, container.name) is not None:
            return
        reusable, borrowed = self._reusable(pod, container), self._borrowed(pod, container)
        mask = self._place(pod, wanted, _sum_of(reusable, borrowed), hint)
        nodes = self._numa.ids(mask)
        # Only blocks on exactly these nodes can be reused. What is borrowed stays in the later container's.
        left, later = reusable.get(mask, {}), borrowed.get(mask, {})
        wanted = {kind: max(size - later.get(kind, 0), 0) for kind, size in wanted.items()}
        for kind, size in wanted.items():
            self.state.use(nodes, kind, max(size - left.get(kind, 0), 0))
        self.state.assign(
            pod.uid, container.name, tuple(Block(nodes, kind, size) for kind, size in wanted.items())
        )
        self._shrink_init_containers(pod, container, nodes, wanted)

    def _place(
        self, pod: Pod, wanted: Mapping[str, int], reusable: dict[int, dict[str, int]], hint: Hint
    ) -> int:
        """Return the mask of the NUMA nodes to take memory from. Raises `AllocationError`."""
        hints = MemoryHints(self._numa, self.state.nodes, wanted, reusable)
        mask, preferred = hint.mask, hint.preferred
        if mask is None:
            found = hints.best()
            if found is None:
                raise AllocationError(
                    "[memorymanager] failed to get the default NUMA affinity, "
                    "no NUMA nodes with enough memory is available"
                )
            if preferred and not found.preferred:
                raise AllocationError("[memorymanager] failed to find the default preferred hint")
            mask, preferred = found.mask, found.preferred
        assert mask is not None
        splits = self._splits_group(mask)
        if splits or not self._has_free(mask, wanted):
            found = hints.best(containing=mask)
            if found is None:
                raise AllocationError(
                    "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
                )
            assert found.mask is not None
            # The pod's other containers have put it on all of these nodes, whatever the hint prefers.
            joins = splits and self._is_on(pod, found.mask)
            if preferred and not found.preferred and not joins:
                raise AllocationError("[memorymanager] failed to find the extended preferred hint")
            mask = found.mask
        if self._violates_groups(self._numa.ids(mask)):
            raise AllocationError("[memorymanager] preferred hint violates NUMA node allocation")
        return mask

    def check_growth(self, pod: Pod) -> None:
        """Raise `CannotResize` if the nodes of a running pod's memory lack what it asks for now."""
        missing: dict[tuple[tuple[int, ...], str], int] = {}
        for container, block, size in self._resized(pod, larger=True):
            key = block.nodes, block.type
            missing[key] = missing.get(key, 0) + size - block.size
            nodes = [self.state.nodes[node] for node in block.nodes]
            # The kubelet adds in uint64, which wraps: amounts that a state file left below zero have to
            # decide alike.
            if missing[key] > sum(node.free(block.type) for node in nodes) % UNSIGNED:
                most = sum(node.allocatable(block.type) for node in nodes) % UNSIGNED
                raise CannotResize(
                    f"Container {container} has its {block.type} on NUMA nodes {list(block.nodes)}, which "
                    f"have too little left for {size} bytes of it",
                    never=size > most,
                )

    def grow(self, pod: Pod) -> bool:
        """Promise containers of a running pod more memory where they ask for it; whether any does."""
        return self._resize(pod, larger=True)

    def shrink(self, pod: Pod) -> bool:
        """Free the memory that containers of a running pod no longer ask for; whether that was anything."""
        return self._resize(pod, larger=False)

    def _resize(self, pod: Pod, *, larger: bool) -> bool:
        resized = list(self._resized(pod, larger=larger))
        for container, block, size in resized:
            self.state.resize(pod.uid, container, block.type, size)
        return bool(resized)

    def _resized(self, pod: Pod, *, larger: bool) -> Iterator[tuple[str, Block, int]]:
        """Return (container, block, bytes now wanted) of blocks that are too small, or else too large."""
        for container in pod.all_containers:
            if container in pod.init_containers and not container.is_sidecar:
                continue
            wanted = self.wanted(pod, container) if pod.uid not in self.state.pods else {}
            for block in self.state.held(pod.uid, container.name) or ():
                size = wanted.get(block.type, block.size)
                if (size > block.size) if larger else (size < block.size):
                    yield container.name, block, size

    def release(self, pod_uid: str) -> None:
        """Release all memory of the pod."""
        self.state.release_pod(pod_uid)

    def container_started(self, pod: Pod, container: Container) -> bool:
        """Release the memory of ordinary init containers before this one; return whether there was any."""
        # An ephemeral container waits for nobody: init containers may still run beside it.
        if isinstance(container, EphemeralContainer):
            return False
        released = False
        for init in pod.init_containers:
            if init.name == container.name:
                break
            if not init.is_sidecar and self.state.held(pod.uid, init.name) is not None:
                self.state.release(pod.uid, init.name)
                released = True
        return released

    def _hints(self, wanted: Mapping[str, int], reusable: dict[int, dict[str, int]]) -> dict[str, Hints]:
        """Return the same hints for each type; without a hint the type is left out, and its allocation fails
        instead.
        """
        hints = MemoryHints(self._numa, self.state.nodes, wanted, reusable)
        if len(self._numa.nodes) > DENSE_NODES:
            return dict.fromkeys(wanted, hints) if hints.best() is not None else {}
        return dict.fromkeys(wanted, hints.flags) if hints.flags.any() else {}

    def _hints_of(self, blocks: tuple[Block, ...], wanted: Mapping[str, int]) -> dict[str, Hints] | None:
        if len(blocks) != len(wanted) or any(wanted.get(b.type) != b.size for b in blocks):
            return None
        return {block.type: [Hint(self._numa.mask(block.nodes), True)] for block in blocks}

    def _reusable(self, pod: Pod, container: Container) -> dict[int, dict[str, int]]:
        """Return the memory that ordinary init containers before this one leave, by mask of nodes
        and type.
        """
        earlier = takewhile(lambda init: init.name != container.name, pod.init_containers)
        return self._held_by(pod, [init for init in earlier if not init.is_sidecar])

    def _borrowed(self, pod: Pod, container: Container) -> dict[int, dict[str, int]]:
        """Return the memory of containers that start only after an ordinary init container has ended.

        They have some already if the pod is admitted again, after a reboot: then it has no blocks for the
        init containers that had ended before, and the node may have no further memory for them.
        """
        if container not in pod.init_containers or container.is_sidecar:
            return {}
        later = dropwhile(lambda one: one.name != container.name, pod.all_containers)
        return self._held_by(pod, [one for one in later if one.name != container.name])

    def _held_by(self, pod: Pod, containers: Sequence[Container]) -> dict[int, dict[str, int]]:
        """Return the memory that containers hold together, by mask of nodes and type."""
        found: dict[int, dict[str, int]] = {}
        for container in containers:
            for block in self.state.held(pod.uid, container.name) or ():
                by_kind = found.setdefault(self._numa.mask(block.nodes), {})
                by_kind[block.type] = by_kind.get(block.type, 0) + block.size
        return found

    def _shrink_init_containers(
        self, pod: Pod, container: Container, nodes: tuple[int, ...], wanted: Mapping[str, int]
    ) -> None:
        """Move memory that the container reuses from the init containers' blocks to its own."""
        left = dict(wanted)
        for init in pod.init_containers:
            if init.name == container.name:
                break
            blocks = self.state.held(pod.uid, init.name)
            if init.is_sidecar or not blocks:
                continue
            shrunk = []
            for block in blocks:
                part = min(block.size, left.get(block.type, 0)) if block.nodes == nodes else 0
                left[block.type] = left.get(block.type, 0) - part
                shrunk.append(Block(block.nodes, block.type, block.size - part))
            self.state.assign(pod.uid, init.name, tuple(shrunk))

    def _has_free(self, mask: int, wanted: Mapping[str, int]) -> bool:
        nodes = [self.state.nodes[node] for node in self._numa.ids(mask)]
        return all(sum(node.free(kind) for node in nodes) % UNSIGNED >= size for kind, size in wanted.items())

    def _splits_group(self, mask: int) -> bool:
        """Tell whether the mask is one node of a group that is in use.

        A merged hint can be, though no hint for memory is. A kubelet gives memory of that node alone, and
        then frees the wrong node's when the group's containers end.
        """
        nodes = self._numa.ids(mask)
        return len(nodes) == 1 and len(self.state.nodes[nodes[0]].cells) > 1

    def _is_on(self, pod: Pod, mask: int) -> bool:
        """Tell whether a container of the pod has memory on exactly these nodes."""
        held = self.state.of_pod(pod.uid).values()
        return any(self._numa.mask(block.nodes) == mask for blocks in held for block in blocks)

    def _violates_groups(self, nodes: tuple[int, ...]) -> bool:
        """Return whether a group of nodes would use a node that is in use alone or in another group."""
        used = [state for state in map(self.state.nodes.__getitem__, nodes) if state.number_of_assignments]
        return len(nodes) > 1 and any(state.cells != nodes for state in used)
