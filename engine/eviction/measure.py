"""Measures pods: memory and processes from their cgroups, disk from the runtime and from the files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from engine.api.errors import KubengineError
from engine.api.pod import Pod
from engine.cri.client import RuntimeClient
from engine.cri.labels import CONTAINER_NAME, POD_UID
from engine.cri.paths import EMPTY_DIR, pod_directory, pod_log_directory, volume_path
from engine.eviction.cgroup_usage import CGROUP_MOUNT, CgroupUsage
from engine.eviction.usage import ContainerUsage, Disk, PodUsage
from engine.host.trees import disk_usage
from engine.wire import cri_v1_pb2 as cri

STATS_TIMEOUT: Final = 10.0

PodCgroup = Callable[[str], str | None]
"""The cgroup of a pod by uid, from the root of the hierarchy (`/kubepods/burstable/pod…`)."""

log = logging.getLogger("kubengine.eviction")


class PodMeter:
    """`volume_path(pod, name)` is where an emptyDir lies; by default where the kubelet has it."""

    def __init__(
        self,
        *,
        pod_cgroup: PodCgroup,
        runtime: RuntimeClient | None,
        pod_logs_dir: Path,
        root_dir: Path,
        mount: Path = CGROUP_MOUNT,
        volume_path: Callable[[Pod, str], Path] | None = None,
    ) -> None:
        self._pod_cgroup, self._runtime, self._mount = pod_cgroup, runtime, mount
        self._pod_logs_dir, self._root_dir = pod_logs_dir, root_dir
        self._volume_path = volume_path or self._empty_dir

    def quick(self, pods: Sequence[Pod]) -> dict[str, PodUsage]:
        """Memory and processes; a pod without a cgroup is left out."""
        usage = {}
        for pod in pods:
            cgroup = self._pod_cgroup(pod.uid)
            if cgroup is None:
                continue
            group = CgroupUsage(cgroup, self._mount)
            try:
                usage[pod.uid] = PodUsage(group.working_set(), _or_none(group.processes))
            except (OSError, KubengineError):
                continue
            finally:
                group.close()
        return usage

    async def whole(
        self, pods: Sequence[Pod], *, files: bool = True, deadline: float = STATS_TIMEOUT
    ) -> dict[str, PodUsage]:
        """Everything: containers' own numbers too, and with `files` what lies on disk. A runtime that doesn't
        answer within `deadline` seconds leaves containers out."""
        usage = self.quick(pods)
        stats = await self._container_stats(deadline)
        for pod in pods:
            measured = usage.setdefault(pod.uid, PodUsage())
            logs: dict[str, Disk] = {}
            if files:
                measured.disk_known = stats is not None
                logs, measured.volumes = await asyncio.to_thread(self._files, pod)
            for name, stat in (stats or {}).get(pod.uid, {}).items():
                layer = stat.writable_layer
                measured.containers[name] = ContainerUsage(
                    stat.memory.working_set_bytes.value if stat.HasField("memory") else None,
                    Disk(layer.used_bytes.value, layer.inodes_used.value),
                    logs.get(name, Disk()),
                )
        return usage

    async def _container_stats(self, deadline: float) -> dict[str, dict[str, cri.ContainerStats]] | None:
        if self._runtime is None:
            return None
        try:
            async with asyncio.timeout(deadline):
                listed = await self._runtime.list_container_stats()
        except (KubengineError, TimeoutError) as error:
            log.warning("container stats cannot be had: %s", error or f"no answer in {deadline:g} s")
            return None
        by_pod: dict[str, dict[str, cri.ContainerStats]] = {}
        for stat in listed:
            labels = stat.attributes.labels
            name = labels.get(CONTAINER_NAME, stat.attributes.metadata.name)
            of_pod = by_pod.setdefault(labels.get(POD_UID, ""), {})
            known = of_pod.get(name)
            if known is None or known.attributes.metadata.attempt < stat.attributes.metadata.attempt:
                of_pod[name] = stat
        return by_pod

    def _files(self, pod: Pod) -> tuple[dict[str, Disk], dict[str, Disk]]:
        """Logs by container and emptyDirs by name."""
        directory = pod_log_directory(self._pod_logs_dir, pod)
        logs = {
            container.name: Disk(*disk_usage(directory / container.name)) for container in pod.every_container
        }
        volumes = {
            volume.name: Disk(*disk_usage(self._volume_path(pod, volume.name)))
            for volume in pod.spec.volumes or ()
            if volume.empty_dir is not None
        }
        return logs, volumes

    def _empty_dir(self, pod: Pod, name: str) -> Path:
        return volume_path(pod_directory(self._root_dir, pod.uid), EMPTY_DIR, name)


def _or_none(read: Callable[[], int]) -> int | None:
    try:
        return read()
    except OSError:
        return None
