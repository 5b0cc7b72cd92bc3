"""`/stats/summary`: cgroups and network from the sampler, file systems from the runtime and the disk.

Where there are no cgroups to read, the runtime's own numbers stand in (`engine.node.summary`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.api.errors import Refused, Unavailable
from engine.api.moments import rfc3339
from engine.api.pod import Pod
from engine.cri.client import RuntimeClient
from engine.cri.paths import hosts_path, pod_directory, pod_log_directory
from engine.cri.records import PodRecord
from engine.eviction.local_storage import is_local_ephemeral
from engine.host.trees import disk_usage
from engine.node import machine
from engine.node.pod_stats import pod_stats
from engine.node.summary import node_summary, pod_summary
from engine.node.usage import shown
from engine.node.usage.sampler import UsageSampler
from engine.node.usage.used import NodeUsage, UsedPod
from engine.node.usage.volumes import VolumeFigures, file_system
from engine.wire import cri_v1_pb2 as cri

FILES_SECONDS = 10.0

Entry = dict[str, Any]


class Summaries:
    """The node's summary for whoever asks. `files_seconds` is how old a walk through pods' files may be."""

    def __init__(
        self,
        *,
        name: str,
        root: Path,
        pod_logs: Path,
        began: float,
        files_seconds: float,
        runtime: RuntimeClient,
        sampler: UsageSampler,
        volumes: VolumeFigures,
        held: Callable[[], Sequence[PodRecord]],
        known: Callable[[str], Pod | None],
        clock: Callable[[], float],
    ) -> None:
        self._name, self._root, self._pod_logs, self._began = name, root, pod_logs, began
        self._files_seconds = max(files_seconds, FILES_SECONDS)
        self._runtime, self._sampler, self._volumes = runtime, sampler, volumes
        self._held, self._known, self._clock = held, known, clock
        self._files: dict[str, tuple[float, Entry]] = {}

    async def current(self) -> Entry:
        """Raises `Unavailable` where the runtime doesn't answer."""
        stats = await pod_stats(self._runtime, self._held())
        pods: dict[str, Entry] = {}
        for each in stats:
            pods[each.attributes.metadata.uid] = pod_summary(each)
        usage = await self._sampler.sample()
        for used in usage.pods:
            record = used.record
            reference = {"name": record.name, "namespace": record.namespace, "uid": record.uid}
            _lay_over(pods.setdefault(record.uid, {"podRef": reference, "containers": []}), used, usage)
        self._files = {uid: files for uid, files in self._files.items() if uid in pods}
        known = [pod for pod in map(self._known, pods) if pod is not None]
        told = await self._volumes.of_drivers(known)
        for pod in known:
            _add_files(pods[pod.uid], await self._files_of(pod), told.get(pod.uid, ()))
        return {"node": await self._node(usage), "pods": list(pods.values())}

    async def _node(self, usage: NodeUsage) -> Entry:
        now, time = usage.time, rfc3339(usage.time)
        node = node_summary(self._name, self._root, self._began, now)
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
        node["network"] = shown.network(usage.network, now)
        node["rlimit"] = {"time": time, "maxpid": machine.max_pids(), "curproc": _processes()}
        node["systemContainers"] = [
            {"name": name, "startTime": rfc3339(self._began), **shown.group(usage.sample(group))}
            for name, group in usage.system.items()
        ]
        node["runtime"] = await self._runtime_fs(time)
        return node

    async def _runtime_fs(self, time: str) -> Entry:
        """Of images and of writable layers: the same where the runtime keeps both in one place."""
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

    async def _files_of(self, pod: Pod) -> Entry:
        now = self._clock()
        kept = self._files.get(pod.metadata.uid)
        if kept is None or not 0 <= now - kept[0] < self._files_seconds:
            found = await asyncio.to_thread(self._walk, pod, rfc3339(now))
            kept = self._files[pod.metadata.uid] = (now, found)
        return kept[1]

    def _walk(self, pod: Pod, time: str) -> Entry:
        """Logs by container, volumes, with the file systems that they are on, and the pod's hosts."""
        logs_top = pod_log_directory(self._pod_logs, pod)
        logs_disk = _place(logs_top)
        logs = {
            container.name: _used(logs_top / container.name, {"time": time, **logs_disk})
            for container in pod.every_container
        }
        return {
            "logs": logs,
            "volumes": self._volumes.of_files(pod),
            "ephemeral": {volume.name for volume in pod.spec.volumes or () if is_local_ephemeral(volume)},
            "hosts": disk_usage(hosts_path(pod_directory(self._root, pod.uid))),
            "disk": {"time": time, **_place(self._root)},
        }


async def _filesystem(listed: Sequence[cri.FilesystemUsage], time: str) -> Entry:
    """The first, as in the kubelet, with what is known of its place."""
    if not listed:
        return {"time": time}
    place = await asyncio.to_thread(_place, Path(listed[0].fs_id.mountpoint))
    used = {"usedBytes": listed[0].used_bytes.value, "inodesUsed": listed[0].inodes_used.value}
    return {"time": time, **place, **used}


def _lay_over(entry: Entry, used: UsedPod, usage: NodeUsage) -> None:
    """What cgroups and devices say is truer than what the runtime says of them."""
    record, sample = used.record, usage.sample(used.group)
    entry |= shown.group(sample)
    if record.sandbox is not None:
        entry["startTime"] = rfc3339(record.sandbox.created_at)
    network = usage.networks.get(record.uid)
    if network:
        entry["network"] = shown.network(network, usage.time)
    if sample.threads is not None:
        entry["process_stats"] = {"process_count": sample.threads}
    by_name = {container["name"]: container for container in entry["containers"]}
    for group in used.containers:
        if group.container is None:
            continue
        name = group.container.name
        container = by_name.setdefault(name, {"name": name})
        container |= shown.group(usage.sample(group))
        container["startTime"] = rfc3339(group.container.started_at)
    entry["containers"] = list(by_name.values())


def _add_files(entry: Entry, files: Mapping[str, Any], of_drivers: Sequence[Entry]) -> None:
    """Logs of containers, volumes, and what of both, of the writable layers and the pod's hosts counts as
    ephemeral."""
    used, inodes = files["hosts"]
    for container in entry["containers"]:
        logs = files["logs"].get(container["name"])
        rootfs = container.get("rootfs")
        if rootfs is not None:
            container["rootfs"] = {**files["disk"], **rootfs}
        if logs is not None:
            container["logs"] = logs
        for part in filter(None, (logs, rootfs)):
            used += part.get("usedBytes", 0)
            inodes += part.get("inodesUsed", 0)
    entry["volume"] = [*files["volumes"], *of_drivers]
    for volume in files["volumes"]:
        if volume["name"] in files["ephemeral"]:
            used += volume["usedBytes"]
            inodes += volume["inodesUsed"]
    entry["ephemeral-storage"] = {**files["disk"], "usedBytes": used, "inodesUsed": inodes}


def _used(path: Path, disk: Mapping[str, Any]) -> Entry:
    used, inodes = disk_usage(path)
    return {**disk, "usedBytes": used, "inodesUsed": inodes}


def _place(path: Path) -> Entry:
    """The file system that a path is on, without what others use of it."""
    whole = file_system(machine.existing_parent(path))
    return {name: whole[name] for name in ("availableBytes", "capacityBytes", "inodesFree", "inodes")}


def machine_swap() -> dict[str, int]:
    """Swap that is free and in use, in bytes."""
    total, free = machine.swap()
    return {"swapAvailableBytes": free, "swapUsageBytes": total - free}


def _processes() -> int:
    """How many threads the kernel schedules."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
