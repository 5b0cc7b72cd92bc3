"""Measures pods: memory and processes from cgroups, disk from the runtime and from files."""

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
from engine.cri.paths import (
    CONFIG_MAP,
    EMPTY_DIR,
    hosts_path,
    pod_directory,
    pod_log_directory,
    project_record,
    volume_path,
)
from engine.eviction.local_storage import is_local_ephemeral
from engine.eviction.usage import ContainerUsage, Disk, PodUsage
from engine.host.cgroupfs.mounts import Mounts
from engine.host.cgroupfs.usage import CgroupUsage
from engine.host.disks.project_quota import volume_usage
from engine.host.trees import disk_usage
from engine.wire import cri_v1_pb2 as cri

STATS_TIMEOUT: Final = 10.0
WALK_SECONDS: Final = 2.0
"""Seconds for which a round of evictions waits while files are walked."""
_RUNNING: Final = cri.ContainerFilter(state=cri.ContainerStateValue(state=cri.CONTAINER_RUNNING))

PodCgroup = Callable[[str], str | None]
"""Returns a pod's cgroup by uid, from the root of the hierarchy (`/kubepods/burstable/pod…`)."""

log = logging.getLogger("kubengine.eviction")


class PodMeter:
    """Measure the pods below the node's directory `root_dir`. With `count_swap`, swapped memory
    counts as used.
    """

    def __init__(
        self,
        *,
        pod_cgroup: PodCgroup,
        runtime: RuntimeClient | None,
        pod_logs_dir: Path,
        root_dir: Path,
        mounts: Mounts,
        count_swap: bool = False,
    ) -> None:
        self._pod_cgroup, self._runtime, self._mounts = pod_cgroup, runtime, mounts
        self._pod_logs_dir, self._root_dir = pod_logs_dir, root_dir
        self._count_swap = count_swap

    def quick(self, pods: Sequence[Pod]) -> dict[str, PodUsage]:
        """Measure memory and processes; pods without a cgroup are left out."""
        usage = {}
        for pod in pods:
            cgroup = self._pod_cgroup(pod.uid)
            if cgroup is None:
                continue
            group = CgroupUsage(cgroup, self._mounts)
            try:
                swapped = group.swapped() if self._count_swap else 0
                usage[pod.uid] = PodUsage(group.working_set() + swapped, _or_none(group.processes))
            except (OSError, KubengineError):
                continue
            finally:
                group.close()
        return usage

    async def whole(
        self, pods: Sequence[Pod], *, files: bool = True, deadline: float = STATS_TIMEOUT
    ) -> dict[str, PodUsage]:
        """Measure everything, including each running container, and with `files` also the disk.

        If the runtime does not answer within `deadline` seconds, containers are left out.
        """
        usage = self.quick(pods)
        stats = await self._container_stats(deadline)
        for pod in pods:
            measured = usage.setdefault(pod.uid, PodUsage())
            logs: dict[str, Disk] = {}
            if files:
                measured.disk_known = stats is not None
                logs = await asyncio.to_thread(self._logs, pod)
                await asyncio.to_thread(self._add_files, pod, measured)
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
                # containerd gives numbers of ended containers too, which a kubelet does not count.
                running = {one.id for one in await self._runtime.list_containers(_RUNNING)}
                listed = await self._runtime.list_container_stats()
        except (KubengineError, TimeoutError) as error:
            log.warning("cannot read container stats: %s", error or f"no answer in {deadline:g} s")
            return None
        by_pod: dict[str, dict[str, cri.ContainerStats]] = {}
        for stat in listed:
            if stat.attributes.id in running:
                labels = stat.attributes.labels
                name = labels.get(CONTAINER_NAME, stat.attributes.metadata.name)
                by_pod.setdefault(labels.get(POD_UID, ""), {})[name] = stat
        return by_pod

    def _logs(self, pod: Pod) -> dict[str, Disk]:
        """Return the size of logs by container."""
        directory = pod_log_directory(self._pod_logs_dir, pod)
        return {
            container.name: Disk(*disk_usage(directory / container.name)) for container in pod.every_container
        }

    def _add_files(self, pod: Pod, usage: PodUsage) -> None:
        directory = pod_directory(self._root_dir, pod.uid)
        usage.hosts = Disk(*disk_usage(hosts_path(directory)))
        for volume in pod.spec.volumes or ():
            counts = is_local_ephemeral(volume)
            if counts or volume.empty_dir is not None:
                plugin = CONFIG_MAP if volume.config_map is not None else EMPTY_DIR
                found = usage.volumes if counts else usage.in_memory
                path = volume_path(directory, plugin, volume.name)
                size, inodes, counted = volume_usage(path, project_record(path))
                found[volume.name] = Disk(size, inodes)
                usage.by_quota += [volume.name] * counted


class PatientMeter:
    """Measure pods without holding up the caller: millions of files take minutes to walk."""

    def __init__(self, meter: PodMeter) -> None:
        self._meter = meter
        self._measuring: asyncio.Future[dict[str, PodUsage]] | None = None

    async def whole(self, pods: Sequence[Pod]) -> dict[str, PodUsage]:
        """Return the usage by uid; nothing after `WALK_SECONDS`, and a later call returns the result, which
        may lack pods.
        """
        if self._measuring is None:
            self._measuring = asyncio.ensure_future(self._meter.whole(pods))
        await asyncio.wait({self._measuring}, timeout=WALK_SECONDS)
        if not self._measuring.done():
            return {}
        measured, self._measuring = self._measuring, None
        return measured.result()

    async def stop(self) -> None:
        """Stop waiting for a measurement that is under way."""
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.wait({self._measuring})


def _or_none(read: Callable[[], int]) -> int | None:
    try:
        return read()
    except OSError:
        return None
