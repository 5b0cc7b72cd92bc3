"""Encodes and decodes the device checkpoint `kubelet_internal_checkpoint`, byte for byte as the kubelet.

A file is `{"Data": {"PodDeviceEntries": [...], "RegisteredDevices": {...}}, "Checksum": N}`. The checksum is
the FNV-1a hash of a one-line dump of the data in Go's notation; null and empty hash differently, and NUMA
nodes are sorted as numbers in the dump and as text in the JSON. Pure; `checkpoint_file` handles the file.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

import msgspec

from engine._fast.devices.device_checksum import fnv1a
from engine.api.encoding.go_text import go_json

NO_NODE = -1
"""The NUMA node of devices without one."""

_int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class CheckpointEntry(msgspec.Struct, frozen=True, rename="pascal", kw_only=True, dict=True):
    """Hold the devices of one resource that one container holds.

    `device_ids` maps a NUMA node (-1: none) to ids; a device of several nodes is listed at each.
    `alloc_resp` is the plugin's serialized ContainerAllocateResponse.
    """

    pod_uid: str = msgspec.field(name="PodUID", default="")
    container_name: str = ""
    resource_name: str = ""
    device_ids: dict[_int64, list[str] | None] | None = msgspec.field(name="DeviceIDs", default=None)
    alloc_resp: bytes | None = None

    @property
    def devices(self) -> set[str]:
        return {device for ids in (self.device_ids or {}).values() for device in ids or ()}

    @cached_property
    def dump(self) -> str:
        """Return the entry as it is hashed."""
        nodes = "<nil>"
        if self.device_ids is not None:
            nodes = _map((str(node), self.device_ids[node]) for node in sorted(self.device_ids))
        response = "<nil>" if self.alloc_resp is None else f"[{' '.join(map(str, self.alloc_resp))}]"
        return (
            f"{{PodUID:(string){self.pod_uid} ContainerName:(string){self.container_name} "
            f"ResourceName:(string){self.resource_name} DeviceIDs:(checkpoint.DevicesPerNUMA){nodes} "
            f"AllocResp:([]uint8){response}}}"
        )

    @cached_property
    def json(self) -> str:
        """Return the entry as it is written."""
        ids = self.device_ids
        nodes = None if ids is None else {str(node): ids[node] for node in sorted(ids, key=str)}
        response = None if self.alloc_resp is None else base64.b64encode(self.alloc_resp).decode()
        return go_json(
            {
                "PodUID": self.pod_uid,
                "ContainerName": self.container_name,
                "ResourceName": self.resource_name,
                "DeviceIDs": nodes,
                "AllocResp": response,
            }
        ).decode()


class Checkpoint(msgspec.Struct, frozen=True, rename="pascal", kw_only=True):
    """Hold the devices that containers hold, and the healthy devices of each registered resource."""

    pod_device_entries: list[CheckpointEntry] | None = None
    registered_devices: dict[str, list[str] | None] | None = None


class DeviceCheckpointError(ValueError):
    """Raised if the text cannot be parsed, or its checksum does not match its data."""


class _File(msgspec.Struct, rename="pascal"):
    data: Checkpoint | None = None
    checksum: Annotated[int, msgspec.Meta(ge=0)] = 0


def hashed_text(checkpoint: Checkpoint) -> str:
    """Return the one-line dump whose hash is the checksum."""
    entries = checkpoint.pod_device_entries
    registered = checkpoint.registered_devices
    return _dump(
        None if entries is None else [entry.dump for entry in entries],
        None if registered is None else _map(_bytewise(registered)),
    )


def checksum(checkpoint: Checkpoint) -> int:
    """Return the checksum of a checkpoint."""
    return fnv1a(hashed_text(checkpoint).encode())


def encode(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint as the kubelet writes it."""
    entries = checkpoint.pod_device_entries
    registered = checkpoint.registered_devices
    listed = "null" if entries is None else f"[{','.join(entry.json for entry in entries)}]"
    devices = "null" if registered is None else go_json(dict(_bytewise(registered))).decode()
    return (
        f'{{"Data":{{"PodDeviceEntries":{listed},"RegisteredDevices":{devices}}},'
        f'"Checksum":{checksum(checkpoint)}}}'
    ).encode()


def decode(text: bytes) -> Checkpoint:
    """Decode a checkpoint. Raises `DeviceCheckpointError`."""
    try:
        file = msgspec.json.decode(text, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DeviceCheckpointError(f"not a device checkpoint: {error}") from None
    data = file.data or Checkpoint()
    expected = checksum(data)
    if expected != file.checksum:
        raise DeviceCheckpointError(f"checksum {file.checksum} does not match its data ({expected})")
    return data


def _bytewise(registered: Mapping[str, list[str] | None]) -> list[tuple[str, list[str] | None]]:
    return sorted(registered.items(), key=lambda item: item[0].encode())


def _list(items: Sequence[str] | None) -> str:
    return "<nil>" if items is None else f"[{' '.join(items)}]"


def _map(pairs: Any) -> str:
    return f"map[{' '.join(f'{key}:{_list(items)}' for key, items in pairs)}]"


def _dump(entries: list[str] | None, registered: str | None) -> str:
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){_list(entries)} "
        f"RegisteredDevices:(map[string][]string){'<nil>' if registered is None else registered}}}"
    )
