"""What of an earlier agent's memory assignments still holds on this machine, with these settings. Pure.

A kubelet stops where the policy, the reservation or the machine's memory are not those of the file. Here
assignments that are still possible are kept, and the others are listed with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.memorymanager.checkpoint import MemoryCheckpoint
from engine.memorymanager.state import Block, MemoryState, NodeState


@dataclass(frozen=True, slots=True)
class LostMemory:
    """An assignment that does not hold any longer, and why."""

    pod_uid: str
    container: str
    blocks: Sequence[Block]
    reason: str


@dataclass(slots=True)
class RestoredMemory:
    """The state to start from, what was lost, and what else changed since the file was written."""

    state: MemoryState
    lost: list[LostMemory] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)


def restore(checkpoint: MemoryCheckpoint, unused: Mapping[int, NodeState]) -> RestoredMemory:
    """Start from a checkpoint, on a machine that is `unused` but for what it says."""
    restored = RestoredMemory(MemoryState(dict(unused)))
    state = restored.state
    for uid, containers in checkpoint.entries.items():
        for name, blocks in containers.items():
            reason = _fault(blocks, state.nodes)
            if reason:
                restored.lost.append(LostMemory(uid, name, blocks, reason))
                continue
            for block in blocks:
                state.use(block.nodes, block.type, block.size)
            state.assign(uid, name, tuple(blocks))
    if not checkpoint.machine_state:
        return restored
    changed = _changed_amounts(checkpoint.machine_state, state.nodes)
    restored.changes += changed
    if not changed and not restored.lost and _same_use(checkpoint.machine_state, state.nodes):
        # What each node of a group gives depends on the order in which containers came and went. The sums
        # agree, so the file's own split is as good, and a kubelet would write it again.
        state.nodes = checkpoint.machine_state
    return restored


def _fault(blocks: Sequence[Block], nodes: Mapping[int, NodeState]) -> str:
    """Why blocks cannot be kept; empty if they can."""
    for block in blocks:
        for node in block.nodes:
            if node not in nodes:
                return f"NUMA node {node} does not exist"
            if block.type not in nodes[node].memory_map:
                return f"NUMA node {node} has no {block.type}"
        free = sum(nodes[node].free(block.type) for node in block.nodes)
        if block.size > free:
            return f"NUMA nodes {list(block.nodes)} have {free} bytes of {block.type} left, not {block.size}"
    return ""


def _changed_amounts(before: Mapping[int, NodeState], after: Mapping[int, NodeState]) -> list[str]:
    """What each node has to give, where that is not what the file says."""
    changes = []
    for node in sorted(before.keys() | after.keys()):
        old, new = _amounts(before.get(node)), _amounts(after.get(node))
        changes += [
            f"NUMA node {node} has {new.get(kind, (0, 0, 0))[2]} bytes of {kind} to give, and had "
            f"{old.get(kind, (0, 0, 0))[2]}"
            for kind in sorted(old.keys() | new.keys())
            if old.get(kind, (0, 0, 0)) != new.get(kind, (0, 0, 0))
        ]
    return changes


def _amounts(node: NodeState | None) -> dict[str, tuple[int, int, int]]:
    """(total, reserved for the system, allocatable) by type."""
    tables = node.memory_map if node is not None else {}
    return {kind: (one.total, one.system_reserved, one.allocatable) for kind, one in tables.items()}


def _same_use(before: Mapping[int, NodeState], after: Mapping[int, NodeState]) -> bool:
    """Whether each group of nodes has given as much as its blocks say."""

    def used(nodes: Mapping[int, NodeState], group: Sequence[int], kind: str) -> int:
        return sum(nodes[node].memory_map[kind].reserved for node in group)

    return all(
        before[node].number_of_assignments == state.number_of_assignments
        and before[node].cells == state.cells
        and all(
            used(before, state.cells, kind) == used(after, state.cells, kind) for kind in state.memory_map
        )
        for node, state in after.items()
    )
