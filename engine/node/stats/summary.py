"""Builds `/stats/summary`: cgroups and network from the sampler, file systems from the runtime and the disk.

Where there are no cgroups, the numbers of the runtime are used. containerd 1.6 fails its whole list of
statistics if one pod has finished; then each pod is read by itself, and if that fails too, each container.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.api.errors import Refused, Unavailable
from engine.api.pod import Pod
from engine.api.struct import to_json
from engine.api.timestamps import rfc3339
from engine.cri import labels
from engine.cri.client import RuntimeClient
from engine.cri.paths import hosts_path, pod_directory, pod_log_directory
from engine.cri.records import PodRecord
from engine.eviction.local_storage import is_local_ephemeral
from engine.host.node_context import NodeContext
from engine.host.trees import disk_usage
from engine.node.nodeinfo import machine
from engine.node.nodeinfo.machine import existing_parent, memory_total
from engine.node.stats import runtime_numbers, shown
from engine.node.stats.runtime_numbers import RuntimeStats
from engine.node.stats.runtime_use import RuntimeUse, runtime_use
from engine.node.stats.sampler import UsageSampler
from engine.node.stats.summary_pods import PodFiles, SummaryPods
from engine.node.stats.used import NodeUsage
from engine.node.stats.volumes import VolumeFigures, file_system
from engine.node.volumes.csi_storage import FILES_SECONDS
from engine.wire import cri_v1_pb2 as cri

Entry = dict[str, Any]
ASKED_AT_ONCE = 16


class Summaries:
    """Build the node's summary; pods' files are measured again after `files_seconds`."""

    def __init__(
        self,
        context: NodeContext,
        *,
        began: float,
        runtime: RuntimeClient,
        sampler: UsageSampler,
        volumes: VolumeFigures,
        held: Callable[[], Sequence[PodRecord]],
        known: Callable[[str], Pod | None],
    ) -> None:
        self._name, self._root, self._began = context.name, context.root, began
        self._pod_logs = Path(context.config.pod_logs_dir)
        self._files_seconds = max(context.config.volume_stats_agg_period, FILES_SECONDS)
        self._runtime, self._sampler, self._volumes = runtime, sampler, volumes
        self._held, self._known, self._clock = held, known, context.clock
        self._files: dict[str, tuple[float, PodFiles]] = {}
        self._pods, self._pods_use = SummaryPods(), SummaryPods(whole=False)

    async def current(self) -> Iterator[bytes]:
        """Yield the kubelet's Summary as JSON. Raises `Unavailable` if the runtime does not answer."""
        stats = await pod_stats(self._runtime, self._held())
        usage = await self._sampler.sample()
        uids = dict.fromkeys(pod.record.uid for pod in usage.pods)
        uids |= dict.fromkeys(uid for _, _, uid in stats.places)
        known = [pod for pod in map(self._known, uids) if pod is not None]
        of_drivers = await self._volumes.of_drivers(known)
        files = await self._files_of(known)
        opening = b'{"node":' + to_json(await self._node(usage)) + b',"pods":['
        return self._pods.pages(opening, usage, stats, files, of_drivers)

    async def cpu_and_memory(self) -> Iterator[bytes]:
        """Yield the Summary with only CPU, memory and swap; asks the runtime only where cgroups provide
        nothing.

        Raises `Unavailable` if the runtime does not answer.
        """
        usage = await self._sampler.sample()
        stats = await pod_stats(self._runtime, self._held()) if usage.lacking else runtime_numbers.read(b"")
        node = _cpu_and_memory_of(self._use_of_node(usage))
        node["systemContainers"] = [_cpu_and_memory_of(each) for each in node["systemContainers"]]
        opening = b'{"node":' + to_json(node) + b',"pods":['
        return self._pods_use.pages(opening, usage, stats, {}, {})

    async def runtime_use(self, usage: NodeUsage) -> list[RuntimeUse]:
        """Return CPU and memory of containers without cgroup numbers; asks the runtime only if there may be
        any.

        Raises `Unavailable` if the runtime does not answer.
        """
        if not usage.lacking:
            return []
        return [*runtime_use(usage, await pod_stats(self._runtime, self._held()))]

    async def _node(self, usage: NodeUsage) -> Entry:
        time = rfc3339(usage.time)
        node = self._use_of_node(usage)
        node["network"] = shown.network(usage.network, usage.time)
        node["rlimit"] = {"time": time, "maxpid": machine.max_pids(), "curproc": _processes()}
        node["runtime"] = await self._runtime_fs(time)
        return node

    def _use_of_node(self, usage: NodeUsage) -> Entry:
        """Return the part that the machine and its cgroups provide."""
        now, time = usage.time, rfc3339(usage.time)
        node = node_summary(self._name, self._root, self._began, now, usage.memory)
        whole = shown.group(usage.sample(usage.root))
        node["cpu"] = whole.get("cpu", {"time": time})
        rss_and_faults = {
            name: value
            for name, value in whole.get("memory", {}).items()
            if name in ("rssBytes", "pageFaults", "majorPageFaults", "psi")
        }
        node["memory"] |= rss_and_faults
        node |= {name: whole[name] for name in ("io",) if name in whole}
        node["swap"] = {"time": time, **machine_swap()}
        node["systemContainers"] = [
            {"name": name, "startTime": rfc3339(self._began), **shown.group(usage.sample(group))}
            for name, group in usage.system.items()
        ]
        return node

    async def _runtime_fs(self, time: str) -> Entry:
        """Return the file systems of images and of writable layers; they are equal if the runtime uses one
        for both.
        """
        try:
            info = await self._runtime.image_fs_info()
        except Unavailable:
            raise
        except Refused:
            return {"imageFs": {"time": time}, "containerFs": {"time": time}}
        images = await _filesystem(info.image_filesystems, time)
        apart = info.image_filesystems and info.container_filesystems
        if apart and info.image_filesystems[0].fs_id != info.container_filesystems[0].fs_id:
            return {"imageFs": images, "containerFs": await _filesystem(info.container_filesystems, time)}
        return {"imageFs": images, "containerFs": images}

    async def _files_of(self, pods: Sequence[Pod]) -> dict[str, PodFiles]:
        """Return the files of each pod, measured again where the last measurement is too old."""
        now = self._clock()
        kept = {pod.uid: self._files[pod.uid] for pod in pods if pod.uid in self._files}
        due = [
            pod
            for pod in pods
            if pod.uid not in kept or not 0 <= now - kept[pod.uid][0] < self._files_seconds
        ]
        if due:
            found = await asyncio.to_thread(lambda: [self._walk(pod, rfc3339(now)) for pod in due])
            kept |= {pod.uid: (now, files) for pod, files in zip(due, found, strict=True)}
        self._files = kept
        return {uid: files for uid, (_, files) in kept.items()}

    def _walk(self, pod: Pod, time: str) -> PodFiles:
        """Measure logs by container, volumes with their file systems, and the pod's hosts file."""
        logs_top = pod_log_directory(self._pod_logs, pod)
        logs_disk = _place(logs_top)
        logs = {
            container.name: _used(logs_top / container.name, {"time": time, **logs_disk})
            for container in pod.every_container
        }
        return PodFiles(
            logs=logs,
            volumes=self._volumes.of_files(pod),
            ephemeral=frozenset(
                volume.name for volume in pod.spec.volumes or () if is_local_ephemeral(volume)
            ),
            hosts=disk_usage(hosts_path(pod_directory(self._root, pod.uid))),
            disk={"time": time, **_place(self._root)},
        )


def _cpu_and_memory_of(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if name not in ("fs", "io")}


async def _filesystem(listed: Sequence[cri.FilesystemUsage], time: str) -> Entry:
    """Return the first file system, as the kubelet does, with what is known about its place."""
    if not listed:
        return {"time": time}
    place = await asyncio.to_thread(_place, Path(listed[0].fs_id.mountpoint))
    used = {"usedBytes": listed[0].used_bytes.value, "inodesUsed": listed[0].inodes_used.value}
    return {"time": time, **place, **used}


def _used(path: Path, disk: Mapping[str, Any]) -> Entry:
    used, inodes = disk_usage(path)
    return {**disk, "usedBytes": used, "inodesUsed": inodes}


def _place(path: Path) -> Entry:
    """Return the file system of a path, without what others use of it."""
    whole = file_system(machine.existing_parent(path))
    return {name: whole[name] for name in ("availableBytes", "capacityBytes", "inodesFree", "inodes")}


def machine_swap() -> dict[str, int]:
    """Return free and used swap in bytes."""
    total, free = machine.swap()
    return {"swapAvailableBytes": free, "swapUsageBytes": total - free}


def _processes() -> int:
    """Return the number of threads that the kernel schedules."""
    # From sysinfo(2) the number would be cut off at 16 bits (Kubernetes issue 107107).
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


async def pod_stats(runtime: RuntimeClient, pods: Iterable[PodRecord]) -> RuntimeStats:
    """Return the statistics of each readable pod. Raises `Unavailable` if the runtime does not answer."""
    try:
        return await runtime.read_pod_sandbox_stats(runtime_numbers.read)
    except Unavailable:
        raise
    except Refused:
        slots = asyncio.Semaphore(ASKED_AT_ONCE)
        asked = [_one(runtime, record, slots) for record in pods if record.may_run]
        found = [stats for stats in await asyncio.gather(*asked) if stats is not None]
        return runtime_numbers.read(cri.ListPodSandboxStatsResponse(stats=found).SerializeToString())


async def _one(
    runtime: RuntimeClient, record: PodRecord, slots: asyncio.Semaphore
) -> cri.PodSandboxStats | None:
    sandbox = record.sandbox
    if sandbox is None:
        return None
    async with slots:
        try:
            return await runtime.pod_sandbox_stats(sandbox.id)
        except Unavailable:
            raise
        except Refused:
            return await _containers_only(runtime, record, sandbox.id)


async def _containers_only(
    runtime: RuntimeClient, record: PodRecord, sandbox: str
) -> cri.PodSandboxStats | None:
    found = []
    for container in record.may_run:
        try:
            found.append(await runtime.container_stats(container.id))
        except Unavailable:
            raise
        except Refused:
            continue
    if not found:
        return None
    metadata = cri.PodSandboxMetadata(name=record.name, uid=record.uid, namespace=record.namespace)
    known = {labels.POD_NAME: record.name, labels.POD_NAMESPACE: record.namespace, labels.POD_UID: record.uid}
    return cri.PodSandboxStats(
        attributes=cri.PodSandboxAttributes(id=sandbox, metadata=metadata, labels=known),
        linux=cri.LinuxPodSandboxStats(containers=found),
    )


def node_summary(
    name: str, root: Path, started_at: float, now: float, memory: tuple[int, int]
) -> dict[str, Any]:
    """Return memory of the machine and the file system of the root directory.

    `memory` is what is in use and its working set, in bytes.
    """
    used, working_set = memory
    disk = os.statvfs(existing_parent(root))
    time = rfc3339(now)
    return {
        "nodeName": name,
        "startTime": rfc3339(started_at),
        "memory": {
            "time": time,
            "availableBytes": memory_total() - working_set,
            "usageBytes": used,
            "workingSetBytes": working_set,
        },
        "fs": {
            "time": time,
            "availableBytes": disk.f_bavail * disk.f_frsize,
            "capacityBytes": disk.f_blocks * disk.f_frsize,
            "usedBytes": (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
            "inodesFree": disk.f_favail,
            "inodes": disk.f_files,
            "inodesUsed": disk.f_files - disk.f_ffree,
        },
    }
