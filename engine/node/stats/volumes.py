"""Measures the usage of volumes: by walking files, from the file system, or from the CSI driver.

As in the kubelet (v1.36), volumes that the agent creates are walked, a local, NFS or iSCSI volume has the
figures of its file system, a block device its size, and hostPath and image volumes have none.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from engine.api.events import WARNING, EventRecorder
from engine.api.objects.storage import LocalVolume
from engine.api.pod import Pod, Volume
from engine.api.timestamps import rfc3339
from engine.cri.paths import project_record
from engine.csi.usage import PATIENCE_SECONDS, VolumeMeasurement
from engine.host.disks.project_quota import volume_usage
from engine.host.threads import in_own_thread
from engine.node.volumes.agent_written import is_agent_written
from engine.node.volumes.claims import claim_name, in_tree_source, is_csi_volume
from engine.node.volumes.csi_storage import CsiStorage
from engine.node.volumes.mounted_volumes import MountedVolume

Entry = dict[str, Any]
_NONE: Final = dict.fromkeys(
    ("availableBytes", "capacityBytes", "usedBytes", "inodesFree", "inodes", "inodesUsed"), 0
)


class VolumeFigures:
    """Measure the usage of volumes; `made` returns a pod's mounted volumes by its uid and their names."""

    def __init__(
        self,
        made: Callable[[str], Mapping[str, MountedVolume]],
        csi: CsiStorage,
        recorder: EventRecorder,
        clock: Callable[[], float],
    ) -> None:
        self._made, self._csi, self._recorder, self._clock = made, csi, recorder, clock
        self._reported: dict[tuple[str, str], str] = {}

    def of_files(self, pod: Pod) -> list[Entry]:
        """Measure the volumes that the node can measure itself. Walks files; call it in a thread."""
        return [
            entry
            for volume, made in self._volumes(pod)
            if (entry := _of_files(pod, volume, made, self._clock())) is not None
        ]

    async def of_drivers(self, pods: Iterable[Pod]) -> dict[str, list[Entry]]:
        """Return by pod the usage of volumes whose drivers have reported."""
        asked = [
            (pod, volume, made)
            for pod in pods
            for volume, made in self._volumes(pod)
            if is_csi_volume(volume, made.bound)
        ]
        if not asked:
            return {}
        usage = await self._csi.usage({each.path: (pod, volume, each.bound) for pod, volume, each in asked})
        found: dict[str, list[Entry]] = {}
        for pod, volume, made in asked:
            measured = usage.get(made.path)
            if measured is not None and measured.usage is not None:
                found.setdefault(pod.uid, []).append(_of_driver(pod, volume, measured))
                self._report(pod, volume, measured)
        return found

    async def of_claims(self, pods: Iterable[Pod]) -> list[Entry]:
        """Return the usage of each claim without walking any files."""
        with_claims = [pod for pod in pods if any(made.bound for _, made in self._volumes(pod))]
        usage = await self.of_drivers(with_claims)
        found: dict[tuple[str, str], Entry] = {}
        for pod in with_claims:
            local = await asyncio.to_thread(self._of_local, pod)
            for entry in (*local, *usage.get(pod.uid, ())):
                claim = entry.get("pvcRef")
                if claim is not None:
                    # Pods that share a claim have the same figures, and the page must not have a series
                    # twice.
                    found.setdefault((claim["namespace"], claim["name"]), entry)
        return list(found.values())

    def _of_local(self, pod: Pod) -> list[Entry]:
        return [
            entry
            for volume, made in self._volumes(pod)
            if made.bound is not None and (entry := _of_files(pod, volume, made, self._clock())) is not None
        ]

    def _volumes(self, pod: Pod) -> Iterable[tuple[Volume, MountedVolume]]:
        made = self._made(pod.uid)
        return [(volume, made[volume.name]) for volume in pod.spec.volumes or () if volume.name in made]

    def _report(self, pod: Pod, volume: Volume, measured: VolumeMeasurement) -> None:
        """Emit an event for an abnormal volume, once per reason."""
        condition = measured.usage.condition if measured.usage is not None else None
        message = condition.message if condition is not None and condition.abnormal else None
        key = pod.uid, volume.name
        if message is None:
            self._reported.pop(key, None)
        elif self._reported.get(key) != message:
            self._reported = {known: text for known, text in self._reported.items() if self._made(known[0])}
            self._reported[key] = message
            self._recorder.pod(pod, WARNING, "VolumeConditionAbnormal", f"Volume {volume.name}: {message}")


def _of_files(pod: Pod, volume: Volume, made: MountedVolume, now: float) -> Entry | None:
    in_tree = in_tree_source(volume, made.bound)
    local = in_tree is not None or (made.bound is not None and isinstance(made.bound.source, LocalVolume))
    figures: Mapping[str, int] | None
    try:
        if made.bound is not None and made.bound.block:
            figures = {"capacityBytes": _device_bytes(made.path)} if local else None
        elif local:
            figures = _REMOTE.of(made.path)
        elif volume.empty_dir is not None or is_agent_written(volume):
            used, inodes, _by_quota = volume_usage(made.path, project_record(made.path))
            figures = {**file_system(made.path), "usedBytes": used, "inodesUsed": inodes}
        else:
            figures = None
    except OSError:  # the volume was removed in the meantime
        return None
    return None if figures is None else _entry(pod, volume, now, figures)


def _of_driver(pod: Pod, volume: Volume, measured: VolumeMeasurement) -> Entry:
    assert measured.usage is not None
    space, inodes, condition = measured.usage.space, measured.usage.inodes, measured.usage.condition
    figures = {
        "availableBytes": space.available,
        "capacityBytes": space.total,
        "usedBytes": space.used,
        "inodesFree": inodes.available,
        "inodes": inodes.total,
        "inodesUsed": inodes.used,
    }
    entry = _entry(pod, volume, measured.time, figures)
    if condition is not None:
        entry["volumeHealthStats"] = {"abnormal": condition.abnormal}
    return entry


def _entry(pod: Pod, volume: Volume, time: float, figures: Mapping[str, int]) -> Entry:
    entry: Entry = {"time": rfc3339(time), **_NONE, **figures, "name": volume.name}
    claim = claim_name(pod, volume)
    if claim is not None:
        entry["pvcRef"] = {"name": claim, "namespace": pod.metadata.namespace}
    return entry


def file_system(path: Path) -> dict[str, int]:
    """Return capacity and usage of the file system of a path. Raises `OSError`."""
    disk = os.statvfs(path)
    return {
        "availableBytes": disk.f_bavail * disk.f_frsize,
        "capacityBytes": disk.f_blocks * disk.f_frsize,
        "usedBytes": (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        "inodesFree": disk.f_ffree,
        "inodes": disk.f_files,
        "inodesUsed": disk.f_files - disk.f_ffree,
    }


class _RemoteFileSystems:
    """Ask file systems of servers, each in a thread of its own, for at most `PATIENCE_SECONDS`.

    A server that does not answer delays neither the caller nor other threads of the agent, and is not asked
    again before it has answered.
    """

    def __init__(self) -> None:
        self._asked: dict[Path, Future[dict[str, int]]] = {}

    def of(self, path: Path) -> dict[str, int] | None:
        """Return the figures of the file system of a path; None without an answer in time."""
        before = self._asked.get(path)
        if before is not None and not before.done():
            return None
        self._asked = {each: answer for each, answer in self._asked.items() if not answer.done()}
        answer = self._asked[path] = in_own_thread(file_system, path)
        try:
            return answer.result(PATIENCE_SECONDS)
        except OSError:  # which a timeout is, too
            return None


_REMOTE: Final = _RemoteFileSystems()


def _device_bytes(path: Path) -> int:
    device = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # The stat of a block device has no size; the end of it is where a seek leads.
        return os.lseek(device, 0, os.SEEK_END)
    finally:
        os.close(device)
