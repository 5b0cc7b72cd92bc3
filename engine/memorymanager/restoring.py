"""Decides which memory reservations of an earlier agent are still valid. Pure.

A kubelet stops if the policy, the reservation or the machine's memory differ from the file. This module
keeps the reservations that are still possible and lists the others with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import msgspec

from engine.memorymanager.checkpoint import MemoryCheckpoint
from engine.memorymanager.state import Block, MemoryState, NodeState


class LostMemory(msgspec.Struct, frozen=True):
    """Hold a reservation that is no longer valid, and the reason."""

    pod_uid: str
    container: str
    blocks: Sequence[Block]
    reason: str


class RestoredMemory(msgspec.Struct):
    """Hold the initial state, the lost reservations, and other changes since the file was written."""

    state: MemoryState
    lost: list[LostMemory] = msgspec.field(default_factory=list)
    changes: list[str] = msgspec.field(default_factory=list)


def restore(
    checkpoint: MemoryCheckpoint, unused: Mapping[int, NodeState], *, pod_level: bool = False
) -> RestoredMemory:
    """Restore a checkpoint on a machine whose empty state is `unused`.

    `pod_level` tells whether pods may have memory as a whole.
    """
    restored = RestoredMemory(MemoryState(dict(unused)))
    state = restored.state
    entries = dict(checkpoint.entries)
    for uid, pod in (checkpoint.pod_entries or {}).items():
        containers = entries.pop(uid, {})
        whole = pod.memory_blocks or []
        reason = _fault(whole, state.nodes) or ("" if containers else "none of its containers has any")
        if not pod_level:
            reason = "the feature gate PodLevelResourceManagers is off"
        if reason:
            restored.lost += [LostMemory(uid, name, of, reason) for name, of in containers.items()]
            continue
        for block in whole:
            state.use(block.nodes, block.type, block.size)
        state.pods[uid] = tuple(whole)
        for name, blocks in containers.items():
            state.assign(uid, name, tuple(blocks))
    for uid, containers in entries.items():
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
    same = not changed and _kinds(checkpoint.machine_state) == _kinds(state.nodes)
    if same and not restored.lost and _same_use(checkpoint.machine_state, state.nodes):
        # The split of a group's memory among its nodes depends on the order in which containers came and
        # went. Only the sums must agree, so keep the file's split, which a kubelet would write again.
        state.nodes = checkpoint.machine_state
    return restored


def _fault(blocks: Sequence[Block], nodes: Mapping[int, NodeState]) -> str:
    """Return why blocks cannot be kept; empty if they can."""
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
    """Return differences between the allocatable memory of the nodes and the file."""
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


def _kinds(nodes: Mapping[int, NodeState]) -> dict[int, Set[str]]:
    """Return the types of memory of each node."""
    return {node: state.memory_map.keys() for node, state in nodes.items()}


def _amounts(node: NodeState | None) -> dict[str, tuple[int, int, int]]:
    """Return (total, reserved for the system, allocatable) by type."""
    tables = node.memory_map if node is not None else {}
    return {kind: (one.total, one.system_reserved, one.allocatable) for kind, one in tables.items()}


def _same_use(before: Mapping[int, NodeState], after: Mapping[int, NodeState]) -> bool:
    """Return whether the blocks of each group of nodes add up to the memory used on it."""

    def used(nodes: Mapping[int, NodeState], group: Sequence[int], kind: str) -> int:
        tables = [nodes[node].memory_map.get(kind) for node in group]
        return sum(table.reserved for table in tables if table is not None)

    return all(
        before[node].number_of_assignments == state.number_of_assignments
        and before[node].cells == state.cells
        and all(
            used(before, state.cells, kind) == used(after, state.cells, kind) for kind in state.memory_map
        )
        for node, state in after.items()
    )
