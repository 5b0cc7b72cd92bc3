"""Encodes and decodes `memory_manager_state`, byte for byte as the kubelet does. Pure.

Writes the versions that a kubelet v1.36 writes: V1, or V2 with the gate PodLevelResourceManagers. The
checksum is the 32-bit FNV-1a hash of the data as Go prints it, with `MemoryManagerCheckpoint`, the type's
first name.
"""

from __future__ import annotations

import msgspec

from engine._fast.devices.device_checksum import fnv1a
from engine.api.encoding.go_text import go_json, go_map
from engine.memorymanager.state import Block, MemoryTable, NodeState


class PodBlocks(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Hold the memory of a pod that is managed as a whole."""

    memory_blocks: list[Block] | None = None


class MemoryCheckpoint(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Hold the state of each NUMA node, and blocks by pod uid and container."""

    policy_name: str = ""
    machine_state: dict[int, NodeState] = {}
    entries: dict[str, dict[str, list[Block]]] = {}
    pod_entries: dict[str, PodBlocks] | None = None
    checksum: int = 0


class MemoryStateError(ValueError):
    """Raised if the text is not a checkpoint, or its checksum does not match its data."""


def encode(checkpoint: MemoryCheckpoint) -> bytes:
    """Encode the file as the kubelet writes it: V2 if `pod_entries` is given, even empty, else V1."""
    machine = checkpoint.machine_state
    content: dict[str, object] = {
        "policyName": checkpoint.policy_name,
        "machineState": {str(node): _sorted_tables(machine[node]) for node in sorted(machine, key=str)},
    }
    if checkpoint.entries:
        content["entries"] = {
            uid: {name: containers[name] for name in sorted(containers, key=str.encode)}
            for uid, containers in sorted(checkpoint.entries.items(), key=lambda item: item[0].encode())
        }
    if checkpoint.pod_entries:
        content["podEntries"] = {
            uid: checkpoint.pod_entries[uid] for uid in sorted(checkpoint.pod_entries, key=str.encode)
        }
    content["checksum"] = checksum(checkpoint)
    return go_json(content)


def _sorted_tables(node: NodeState) -> NodeState:
    tables = {kind: node.memory_map[kind] for kind in sorted(node.memory_map)}
    return msgspec.structs.replace(node, memory_map=tables)


def checksum(checkpoint: MemoryCheckpoint) -> int:
    """Return the checksum of a checkpoint."""
    machine = go_map({node: _dump_node(state) for node, state in checkpoint.machine_state.items()})
    entries = go_map(
        {
            uid: go_map({name: _dump_blocks(blocks) for name, blocks in containers.items()})
            for uid, containers in checkpoint.entries.items()
        }
    )
    pods = ""
    if checkpoint.pod_entries is not None:
        listed = go_map({uid: _dump_pod(pod) for uid, pod in checkpoint.pod_entries.items()})
        pods = f" PodEntries:(state.PodMemoryAssignments){listed}"
    return fnv1a(
        (
            f"(*state.MemoryManagerCheckpoint){{PolicyName:(string){checkpoint.policy_name} "
            f"MachineState:(state.NUMANodeMap){machine} "
            f"Entries:(state.ContainerMemoryAssignments){entries}{pods} Checksum:(checksum.Checksum)0}}"
        ).encode()
    )


def decode(text: bytes) -> MemoryCheckpoint:
    """Read a file of either version. Raises `MemoryStateError`."""
    try:
        found = msgspec.json.decode(text, type=MemoryCheckpoint)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MemoryStateError(f"not a state file of the memory manager: {error}") from None
    if found.checksum == 0 and found.pod_entries is None:
        return found
    with_pods = msgspec.structs.replace(found, pod_entries=found.pod_entries or {})
    if found.checksum not in (checksum(found), checksum(with_pods)):
        raise MemoryStateError(f"checksum {found.checksum} does not match its data ({checksum(found)})")
    return found


def _dump_node(node: NodeState) -> str:
    tables = go_map({kind: _dump_table(table) for kind, table in node.memory_map.items()})
    return (
        f"<*>{{NumberOfAssignments:(int){node.number_of_assignments} "
        f"MemoryMap:(map[v1.ResourceName]*state.MemoryTable){tables} Cells:([]int){_dump_ints(node.cells)}}}"
    )


def _dump_table(table: MemoryTable) -> str:
    return (
        f"<*>{{TotalMemSize:(uint64){table.total} SystemReserved:(uint64){table.system_reserved} "
        f"Allocatable:(uint64){table.allocatable} Reserved:(uint64){table.reserved} "
        f"Free:(uint64){table.free}}}"
    )


def _dump_blocks(blocks: list[Block]) -> str:
    listed = " ".join(
        f"{{NUMAAffinity:([]int){_dump_ints(block.nodes)} Type:(v1.ResourceName){block.type} "
        f"Size:(uint64){block.size}}}"
        for block in blocks
    )
    return f"[{listed}]"


def _dump_pod(pod: PodBlocks) -> str:
    blocks = "<nil>" if pod.memory_blocks is None else _dump_blocks(pod.memory_blocks)
    return f"{{MemoryBlocks:([]state.Block){blocks}}}"


def _dump_ints(numbers: tuple[int, ...]) -> str:
    return f"[{' '.join(map(str, numbers))}]"
