"""Merges what plugins add to a container into CRI messages. Pure.

If several answers set the same variable, path or annotation, the first wins, in the order of resource names.
Rule: kubelet v1.32 `devicemanager/pod_devices.go`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from engine.api.errors import Bug
from engine.devices.checkpoint import CheckpointEntry
from engine.wire import UNREADABLE
from engine.wire import cri_v1_pb2 as cri
from engine.wire.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse

_Kept = TypeVar("_Kept")
_NAMED = 5
"""Conflicts that a log line names: two answers may have a hundred thousand."""
log = logging.getLogger("kubengine.devices")


class DeviceRunOptions(msgspec.Struct, frozen=True):
    """Hold environment, mounts, device nodes, annotations and CDI names for one container."""

    envs: Mapping[str, str] = msgspec.field(default_factory=dict)
    mounts: list[cri.Mount] = msgspec.field(default_factory=list)
    devices: list[cri.Device] = msgspec.field(default_factory=list)
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    cdi_devices: list[cri.CDIDevice] = msgspec.field(default_factory=list)


def run_options(entries: Iterable[CheckpointEntry]) -> DeviceRunOptions:
    """Merge the answers of a container's assignments."""
    envs: dict[str, str] = {}
    annotations: dict[str, str] = {}
    mounts: dict[str, cri.Mount] = {}
    devices: dict[str, cri.Device] = {}
    cdi: dict[str, cri.CDIDevice] = {}
    conflicts: list[str] = []

    def keep(kept: dict[str, _Kept], what: str, key: str, value: _Kept) -> None:
        if kept.setdefault(key, value) != value:
            conflicts.append(f"{what} {key} of {entry.resource_name}")

    for entry in sorted(entries, key=lambda entry: entry.resource_name):
        try:
            answer = ContainerAllocateResponse.FromString(entry.alloc_resp or b"")
        except UNREADABLE as error:
            raise Bug(f"unreadable Allocate response: {error}", subject=entry.resource_name) from error
        for name, value in sorted(answer.envs.items()):
            keep(envs, "environment variable", name, value)
        for mount in answer.mounts:
            made = cri.Mount(
                container_path=mount.container_path, host_path=mount.host_path, readonly=mount.read_only
            )
            keep(mounts, "mount", mount.container_path, made)
        for device in answer.devices:
            node = cri.Device(
                container_path=device.container_path,
                host_path=device.host_path,
                permissions=device.permissions,
            )
            keep(devices, "device", device.container_path, node)
        for name, value in sorted(answer.annotations.items()):
            keep(annotations, "annotation", name, value)
        for named in answer.cdi_devices:
            cdi.setdefault(named.name, cri.CDIDevice(name=named.name))
    if conflicts:
        log.error(
            "%d values for container %s differ from those of another resource, which are used: %s%s",
            len(conflicts),
            entry.container_name,
            ", ".join(conflicts[:_NAMED]),
            ", …" if len(conflicts) > _NAMED else "",
        )
    return DeviceRunOptions(
        envs, list(mounts.values()), list(devices.values()), annotations, list(cdi.values())
    )
