"""Encodes and decodes `cpu_manager_state`, byte for byte as the kubelet does. Pure.

Writes the versions that a kubelet v1.36 writes: V2, or V3 with the gate PodLevelResourceManagers. Reads V1
(by container id), V2 and V3. The checksum is the 32-bit FNV-1a hash of the data as Go prints it, with
`CPUManagerCheckpoint`, the type's first name, in all versions. A checksum of 0 in V1 and V2 is not verified.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine._fast.devices.device_checksum import fnv1a
from engine.api import cpu_set as cpu_sets
from engine.api.encoding.go_text import go_json, go_map
from engine.api.errors import InvalidInput


class CpuCheckpoint(msgspec.Struct, rename="camel"):
    """Hold CPU sets as text: the shared pool, and the exclusive CPUs by pod uid and container.

    `entries_by_id` are the entries of V1, by container id.
    """

    policy_name: str = ""
    default_cpu_set: str = ""
    entries: dict[str, dict[str, str]] = {}
    pod_entries: dict[str, str] | None = None
    entries_by_id: dict[str, str] = {}


class CpuStateError(ValueError):
    """Raised if the text is not a checkpoint, or its checksum does not match its data."""


class _File(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    policy_name: str = ""
    default_cpu_set: str = ""
    entries: dict[str, str | dict[str, str]] | None = None
    pod_entries: dict[str, dict[str, str]] | None = None
    checksum: int = 0


def encode(checkpoint: CpuCheckpoint) -> bytes:
    """Encode the file as the kubelet writes it: V3 if `pod_entries` is given, even empty, else V2."""
    content: dict[str, object] = {
        "policyName": checkpoint.policy_name,
        "defaultCpuSet": checkpoint.default_cpu_set,
    }
    if checkpoint.entries:
        content["entries"] = _in_order(
            {uid: _in_order(containers) for uid, containers in checkpoint.entries.items()}
        )
    if checkpoint.pod_entries:
        content["podEntries"] = _in_order(
            {uid: {"cpuSet": cpus} for uid, cpus in checkpoint.pod_entries.items()}
        )
    content["checksum"] = checksum(checkpoint)
    return go_json(content)


def checksum(checkpoint: CpuCheckpoint) -> int:
    """Return the checksum of a V2 or V3 checkpoint."""
    entries = go_map(
        {uid: go_map(containers) for uid, containers in checkpoint.entries.items()},
    )
    return _checksum(checkpoint, f"(map[string]map[string]string){entries}")


def _checksum(checkpoint: CpuCheckpoint, entries: str) -> int:
    pods = ""
    if checkpoint.pod_entries is not None:
        listed = go_map(
            {
                uid: f"{{CPUSet:(cpuset.CPUSet){_dump_set(cpus)}}}"
                for uid, cpus in checkpoint.pod_entries.items()
            }
        )
        pods = f" PodEntries:(state.PodCPUAssignments){listed}"
    return fnv1a(
        (
            f"(*state.CPUManagerCheckpoint){{PolicyName:(string){checkpoint.policy_name} "
            f"DefaultCPUSet:(string){checkpoint.default_cpu_set} "
            f"Entries:{entries}{pods} Checksum:(checksum.Checksum)0}}"
        ).encode()
    )


def _dump_set(cpus: str) -> str:
    """Return a set of CPUs as Go prints it: a structure around a map of its numbers."""
    try:
        found = cpu_sets.numbers(cpu_sets.parse(cpus))
    except InvalidInput as error:
        raise CpuStateError(f"podEntries: {error}") from None
    return f"{{elems:(map[int]struct {{}})map[{' '.join(f'{cpu}:{{}}' for cpu in found)}]}}"


def decode(text: bytes) -> CpuCheckpoint:
    """Read a file of any version. Raises `CpuStateError`."""
    try:
        file = msgspec.json.decode(text, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CpuStateError(f"not a state file of the CPU manager: {error}") from None
    found = CpuCheckpoint(file.policy_name, file.default_cpu_set)
    for key, value in (file.entries or {}).items():
        if isinstance(value, str):
            found.entries_by_id[key] = value
        else:
            found.entries[key] = value
    if file.pod_entries is not None:
        found.pod_entries = {uid: entry.get("cpuSet", "") for uid, entry in file.pod_entries.items()}
    if file.checksum == 0 and found.pod_entries is None:
        return found
    if file.checksum not in _possible_checksums(found):
        raise CpuStateError(f"checksum {file.checksum} does not match its data ({checksum(found)})")
    return found


def _possible_checksums(checkpoint: CpuCheckpoint) -> set[int]:
    """Return the valid checksums: for a file without pod entries those of V2 and of an empty V3; for V1 its
    own.
    """
    if checkpoint.entries_by_id:
        return {_checksum(checkpoint, f"(map[string]string){go_map(checkpoint.entries_by_id)}")}
    with_pods = msgspec.structs.replace(checkpoint, pod_entries=checkpoint.pod_entries or {})
    empty_v1 = _checksum(checkpoint, "(map[string]string)map[]")
    return {checksum(checkpoint), checksum(with_pods), *([] if checkpoint.entries else [empty_v1])}


def _in_order(items: Mapping[str, object]) -> dict[str, object]:
    return {key: items[key] for key in sorted(items, key=str.encode)}
