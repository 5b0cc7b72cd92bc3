"""What of an earlier memory state holds on another machine, or with another reservation."""

from __future__ import annotations

import copy

import pytest

from engine.memorymanager.checkpoint import MemoryCheckpoint
from engine.memorymanager.restoring import restore
from engine.memorymanager.state import Block, MemoryState, NodeMemory, NodeState, unused

GIB = 1 << 30


def machine(*gib: int, reserved: int = 1) -> dict[int, NodeState]:
    nodes = [NodeMemory(node, amount * GIB) for node, amount in enumerate(gib)]
    return unused(nodes, {0: {"memory": reserved * GIB}})


def checkpoint(nodes: dict[int, NodeState], **entries: Block) -> MemoryCheckpoint:
    state = MemoryState(copy.deepcopy(nodes))
    for uid, block in entries.items():
        state.use(block.nodes, block.type, block.size)
        state.assign(uid, "c", (block,))
    listed = {uid: {"c": [block]} for uid, block in entries.items()}
    return MemoryCheckpoint("Static", state.nodes, listed)


def test_the_same_machine_keeps_everything() -> None:
    before = checkpoint(machine(8, 8), a=Block((0,), "memory", 2 * GIB), b=Block((1,), "memory", GIB))
    restored = restore(before, machine(8, 8))
    assert (restored.lost, restored.changes) == ([], [])
    assert restored.state.nodes == before.machine_state
    assert restored.state.pod_uids == ["a", "b"]


def test_another_reservation_keeps_what_still_fits() -> None:
    before = checkpoint(machine(8, 8), a=Block((0,), "memory", 6 * GIB), b=Block((1,), "memory", GIB))
    restored = restore(before, machine(8, 8, reserved=4))
    assert [(one.pod_uid, one.container) for one in restored.lost] == [("a", "c")]
    assert "left" in restored.lost[0].reason
    assert restored.changes == [f"NUMA node 0 has {4 * GIB} bytes of memory to give, and had {7 * GIB}"]
    assert restored.state.nodes[0].number_of_assignments == 0
    assert restored.state.nodes[1].free("memory") == 7 * GIB


def test_a_node_that_is_gone_loses_its_blocks_only() -> None:
    before = checkpoint(machine(8, 8), a=Block((0,), "memory", GIB), b=Block((1,), "memory", GIB))
    restored = restore(before, machine(8))
    assert [(one.pod_uid, one.reason) for one in restored.lost] == [("b", "NUMA node 1 does not exist")]
    assert restored.state.pod_uids == ["a"]


def test_a_split_of_a_group_that_only_order_explains_is_kept() -> None:
    """Which node of a group gives how much depends on who came and went; a kubelet compares the sums."""
    state = MemoryState(machine(4, 4, reserved=1))
    state.use((0, 1), "memory", 3 * GIB)
    state.assign("gone", "c", (Block((0, 1), "memory", 3 * GIB),))
    state.use((0, 1), "memory", 4 * GIB)
    state.assign("a", "c", (Block((0, 1), "memory", 4 * GIB),))
    state.release("gone", "c")
    before = MemoryCheckpoint("Static", state.nodes, {"a": {"c": list(state.held("a", "c") or ())}})
    restored = restore(before, machine(4, 4, reserved=1))
    assert (restored.lost, restored.changes) == ([], [])
    assert restored.state.nodes == before.machine_state


GROUP = Block((0, 1), "memory", GIB)


@pytest.mark.parametrize("pages", [{}, {1 << 20: 0}], ids=["a node without memory", "a size of huge pages"])
@pytest.mark.parametrize("appears", [True, False])
def test_what_appears_or_goes_without_any_bytes_is_no_change(pages: dict[int, int], appears: bool) -> None:
    """A new kernel may show another size of huge pages, and a device a NUMA node without memory."""
    reserved = {0: {"memory": GIB}}
    less = unused([NodeMemory(0, 8 * GIB)], reserved)
    more = unused([NodeMemory(0, 8 * GIB, pages), *([] if pages else [NodeMemory(1, 0)])], reserved)
    earlier, later = (less, more) if appears else (more, less)
    before = checkpoint(earlier, a=Block((0,), "memory", GIB))
    restored = restore(before, copy.deepcopy(later))
    assert (restored.lost, restored.changes) == ([], [])
    assert restored.state.nodes.keys() == later.keys()
    assert restored.state.nodes[0].memory_map.keys() == later[0].memory_map.keys()
    assert restored.state.nodes[0].free("memory") == 6 * GIB


def test_a_group_may_have_a_node_without_huge_pages() -> None:
    nodes = unused([NodeMemory(0, 8 * GIB, {2048: 4}), NodeMemory(1, 0)], {0: {"memory": GIB}})
    before = checkpoint(nodes, a=GROUP)
    restored = restore(before, nodes)
    assert (restored.lost, restored.changes) == ([], [])
    assert restored.state.nodes == before.machine_state
