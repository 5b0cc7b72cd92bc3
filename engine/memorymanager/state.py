"""Holds the memory of NUMA nodes and the reservations of containers, with the kubelet's accounting.

A node is used either by containers that fit on it alone or by one group of nodes together, never both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

UNSIGNED = 2**64
"""Sums of bytes are modulo 2^64, as the kubelet's unsigned integers."""


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hold memory of one type, in bytes, that a container has on one NUMA node or on a group of nodes."""

    nodes: tuple[int, ...] = msgspec.field(name="numaAffinity", default=())
    type: str = ""
    size: int = 0


class MemoryTable(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Hold one type of memory on one node, in bytes: allocatable is total minus systemReserved."""

    total: int = 0
    system_reserved: int = 0
    allocatable: int = 0
    reserved: int = 0
    free: int = 0


class NodeState(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Hold one NUMA node: the blocks on it, its memory by type, and the group of nodes in which it is
    used.
    """

    number_of_assignments: int = 0
    memory_map: dict[str, MemoryTable] = {}
    cells: tuple[int, ...] = ()

    def free(self, kind: str) -> int:
        """Return the free bytes of a type; 0 if the node does not have the type."""
        table = self.memory_map.get(kind)
        return table.free if table is not None else 0

    def allocatable(self, kind: str) -> int:
        """Return the allocatable bytes of a type; 0 if the node does not have the type."""
        table = self.memory_map.get(kind)
        return table.allocatable if table is not None else 0


class NodeMemory(msgspec.Struct, frozen=True):
    """Hold the memory of a NUMA node: bytes of memory, and pages by size in KiB."""

    node: int
    memory: int
    hugepages: dict[int, int] = {}


def hugepage_type(kib: int) -> str:
    """Return the resource name of huge pages of a size: `hugepages-2Mi`."""
    size, unit = kib, 0
    while size % 1024 == 0 and unit < 2:
        size, unit = size // 1024, unit + 1
    return f"hugepages-{size}{('Ki', 'Mi', 'Gi')[unit]}"


def unused(machine: Sequence[NodeMemory], reserved: Mapping[int, Mapping[str, int]]) -> dict[int, NodeState]:
    """Return the state of a machine without reservations; `reserved` is node → type → bytes."""
    nodes = {}
    for one in machine:
        kept = reserved.get(one.node, {})
        tables = {}
        in_pages = 0
        for kib, pages in one.hugepages.items():
            kind, total = hugepage_type(kib), pages * kib * 1024
            tables[kind] = _table(total, kept.get(kind, 0), 0)
            in_pages += total
        tables["memory"] = _table(one.memory, kept.get("memory", 0), in_pages)
        nodes[one.node] = NodeState(memory_map=tables, cells=(one.node,))
    return nodes


def _table(total: int, reserved: int, in_pages: int) -> MemoryTable:
    # If more memory is reserved or in huge pages than a node has, the kubelet's unsigned integers wrap
    # around. It compares them with this file when it starts, and stops if they differ.
    allocatable = (total - reserved - in_pages) % UNSIGNED
    return MemoryTable(total=total, system_reserved=reserved, allocatable=allocatable, free=allocatable)


class MemoryState:
    """Hold the memory of each node, and blocks by pod uid and container.

    `pods` are the blocks of pods that are managed as a whole.
    """

    def __init__(self, nodes: dict[int, NodeState]) -> None:
        self.nodes = nodes
        self.pods: dict[str, tuple[Block, ...]] = {}
        self._held: dict[str, dict[str, tuple[Block, ...]]] = {}

    def held(self, pod_uid: str, container: str) -> tuple[Block, ...] | None:
        """Return the blocks of a container, or None."""
        return self._held.get(pod_uid, {}).get(container)

    def entries(self) -> Iterator[tuple[str, str, tuple[Block, ...]]]:
        """Yield (pod uid, container, blocks) of all reservations."""
        for pod_uid, containers in self._held.items():
            for container, blocks in containers.items():
                yield pod_uid, container, blocks

    @property
    def pod_uids(self) -> list[str]:
        """Return the uids of pods with reserved memory."""
        return list(self._held)

    def of_pod(self, pod_uid: str) -> dict[str, tuple[Block, ...]]:
        """Return the blocks of each container of a pod."""
        return dict(self._held.get(pod_uid, {}))

    def assign(self, pod_uid: str, container: str, blocks: tuple[Block, ...]) -> None:
        """Record a container's blocks in place of its earlier ones; `use` takes the memory."""
        self._held.setdefault(pod_uid, {})[container] = blocks

    def resize(self, pod_uid: str, container: str, kind: str, size: int) -> None:
        """Make a container's block larger or smaller on the nodes that it is on."""
        blocks = []
        for block in self._held[pod_uid][container]:
            if block.type == kind:
                self._take(block.nodes, kind, max(size - block.size, 0))
                self._put_back(block.nodes, kind, max(block.size - size, 0))
                block = Block(block.nodes, kind, size)
            blocks.append(block)
        self._held[pod_uid][container] = tuple(blocks)

    def use(self, nodes: Sequence[int], kind: str, size: int) -> None:
        """Take memory from nodes in order, and make them a group."""
        for node in nodes:
            state = self.nodes[node]
            state.number_of_assignments += 1
            state.cells = tuple(nodes)
        self._take(nodes, kind, size)

    def release(self, pod_uid: str, container: str) -> None:
        """Release the blocks of a container."""
        containers = self._held.get(pod_uid, {})
        blocks = containers.pop(container, ())
        if not containers:
            self._held.pop(pod_uid, None)
        whole = self.pods.get(pod_uid)
        if whole is None:
            self._release_blocks(blocks)
        elif not containers:
            self._release_blocks(self.pods.pop(pod_uid))

    def release_pod(self, pod_uid: str) -> None:
        """Release the blocks of all containers of a pod."""
        for container in self.of_pod(pod_uid):
            self.release(pod_uid, container)

    def _release_blocks(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            for node in block.nodes:
                state = self.nodes[node]
                state.number_of_assignments -= 1
                if not state.number_of_assignments:
                    state.cells = (node,)
            self._put_back(block.nodes, block.type, block.size)

    def _take(self, nodes: Sequence[int], kind: str, size: int) -> None:
        """Reserve memory of nodes, the first before the next."""
        for table in self._tables(nodes, kind):
            part = min(size, table.free)
            table.reserved += part
            table.free -= part
            size -= part

    def _put_back(self, nodes: Sequence[int], kind: str, size: int) -> None:
        """Free memory of nodes, the first before the next."""
        for table in self._tables(nodes, kind):
            part = min(size, table.reserved)
            table.reserved -= part
            table.free += part
            size -= part

    def _tables(self, nodes: Sequence[int], kind: str) -> Iterator[MemoryTable]:
        for node in nodes:
            table = self.nodes[node].memory_map.get(kind)
            if table is not None:
                yield table
