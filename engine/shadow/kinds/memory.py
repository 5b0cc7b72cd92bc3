"""Reserve memory and huge pages of NUMA nodes as the Static policy of the kubelet does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from engine.api.config import KubeletConfiguration
from engine.api.pod import Container, Pod
from engine.devices.pod_resources import MemoryBlock
from engine.memorymanager.checkpoint import MemoryCheckpoint
from engine.memorymanager.restoring import restore
from engine.memorymanager.state import Block, NodeState
from engine.memorymanager.static_policy import StaticMemoryPolicy
from engine.shadow.kinds.choices import Entries
from engine.topologymanager.policy import Hint, Numa

STATIC: Final = "Static"


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """Hold the Static policy and the memory of this machine; `unused` is its memory without reservations."""

    unused: Mapping[int, NodeState]
    numa: Numa

    @classmethod
    def of(cls, config: KubeletConfiguration, state: MemoryCheckpoint | None) -> MemoryRules | None:
        """Return the rules of a configuration on the machine that a state file describes; None under another
        policy, or without a state file.
        """
        if config.memory_manager_policy != STATIC or state is None:
            return None
        return cls(emptied(state.machine_state), Numa(tuple(sorted(state.machine_state))))

    def allocator(self, entries: Entries) -> MemoryAllocator:
        """Return an allocator in the state with these entries."""
        blocks = {uid: {name: list(each) for name, each in of.items()} for uid, of in entries.items()}
        restored = restore(MemoryCheckpoint(entries=blocks), emptied(self.unused))
        return MemoryAllocator(StaticMemoryPolicy(self.numa, restored.state))

    def text(self, assignment: Iterable[Block]) -> str:
        """Return an assignment of the state file, blocks of memory, as text."""
        return _text(assignment)


@dataclass(frozen=True, slots=True)
class MemoryAllocator:
    """Reserve memory that is free in `policy`."""

    policy: StaticMemoryPolicy

    def needs_assignment(self, pod: Pod, container: Container) -> bool:
        """Return whether memory is reserved for the container. Raise `AllocationError`."""
        return bool(self.policy.wanted(pod, container))

    def allocate(self, pod: Pod, container: Container, hint: Hint) -> str:
        """Reserve memory for the container; return the reason. Raise `AllocationError`."""
        wanted, nodes = self.policy.wanted(pod, container), self.policy.state.nodes
        free = {kind: [node.free(kind) for node in nodes.values()] for kind in wanted}
        self.policy.allocate(pod, container, hint)
        amounts = "; ".join(f"{kind} {', '.join(map(str, each))}" for kind, each in free.items())
        return f"bytes that were free by NUMA node: {amounts}"

    def assigned(self, pod: Pod, container: Container) -> str:
        """Return the memory of the container as text. A later container reuses that of an init container."""
        return _text(self.policy.state.held(pod.uid, container.name) or ())


def emptied(nodes: Mapping[int, NodeState]) -> dict[int, NodeState]:
    """Return the NUMA nodes of a state file without any reservation."""
    return {
        number: NodeState(
            memory_map={
                kind: replace(table, reserved=0, free=table.allocatable)
                for kind, table in node.memory_map.items()
            },
            cells=(number,),
        )
        for number, node in nodes.items()
    }


def _text(blocks: Iterable[Block]) -> str:
    return ", ".join(block_texts(blocks))


def block_texts(blocks: Iterable[Block | MemoryBlock]) -> list[str]:
    """Return blocks of memory as texts, sorted by type and NUMA nodes."""
    return [
        f"{block.size} bytes of {block.type} on NUMA {','.join(map(str, block.nodes))}"
        for block in sorted(blocks, key=lambda block: (block.type, tuple(block.nodes)))
    ]
