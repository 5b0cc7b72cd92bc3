"""Choose NUMA nodes for memory and huge pages again, as the Static policy does. Pure."""

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
    """Hold what the Static policy decides by on this machine, as `ChoiceRules`; `unused` is the empty
    machine.
    """

    unused: Mapping[int, NodeState]
    numa: Numa

    @classmethod
    def of(cls, config: KubeletConfiguration, state: MemoryCheckpoint | None) -> MemoryRules | None:
        """Return the rules of a configuration on the machine that a state file shows; None without the
        policy.
        """
        if config.memory_manager_policy != STATIC or state is None:
            return None
        return cls(emptied(state.machine_state), Numa(tuple(sorted(state.machine_state))))

    def chooser(self, entries: Entries) -> MemoryChooser:
        """Return the policy as it was with these reservations."""
        held = {uid: {name: list(blocks) for name, blocks in of.items()} for uid, of in entries.items()}
        restored = restore(MemoryCheckpoint(entries=held), emptied(self.unused))
        return MemoryChooser(StaticMemoryPolicy(self.numa, restored.state))

    def text(self, held: Iterable[Block]) -> str:
        """Return the memory of a container."""
        return _text(held)


@dataclass(frozen=True, slots=True)
class MemoryChooser:
    """Reserve memory of what `policy` has left."""

    policy: StaticMemoryPolicy

    def wants(self, pod: Pod, container: Container) -> bool:
        """Tell whether the container is to get memory of its own. Raise `AllocationError`."""
        return bool(self.policy.wanted(pod, container))

    def choose(self, pod: Pod, container: Container, hint: Hint) -> str:
        """Give the container its memory; return why. Raise `AllocationError`."""
        wanted, nodes = self.policy.wanted(pod, container), self.policy.state.nodes
        free = {kind: [node.free(kind) for node in nodes.values()] for kind in wanted}
        self.policy.allocate(pod, container, hint)
        said = "; ".join(f"{kind} {', '.join(map(str, amounts))}" for kind, amounts in free.items())
        return f"bytes that were free by NUMA node: {said}"

    def held(self, pod: Pod, container: Container) -> str:
        """Return the memory of the container; a later container takes over that of an init container."""
        return _text(self.policy.state.held(pod.uid, container.name) or ())


def emptied(nodes: Mapping[int, NodeState]) -> dict[int, NodeState]:
    """Return the nodes of a state file as they are without any reservation."""
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


def _text(held: Iterable[Block]) -> str:
    return ", ".join(block_texts(held))


def block_texts(blocks: Iterable[Block | MemoryBlock]) -> list[str]:
    """Describe blocks of memory, in the order of their types and nodes."""
    return [
        f"{block.size} bytes of {block.type} on NUMA {','.join(map(str, block.nodes))}"
        for block in sorted(blocks, key=lambda block: (block.type, tuple(block.nodes)))
    ]
