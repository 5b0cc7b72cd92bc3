"""The pods of a summary as plain dictionaries, put together one by one: what the page must say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine.api.timestamps import rfc3339
from engine.node.stats import shown
from engine.node.stats.summary_pods import PodFiles
from engine.node.stats.used import NodeUsage, UsedPod
from engine.wire import cri_v1_pb2 as cri

Entry = dict[str, Any]
_CPU: Final = {
    "usage_nano_cores": "usageNanoCores",
    "usage_core_nano_seconds": "usageCoreNanoSeconds",
}
_MEMORY: Final = {
    "available_bytes": "availableBytes",
    "usage_bytes": "usageBytes",
    "working_set_bytes": "workingSetBytes",
    "rss_bytes": "rssBytes",
    "page_faults": "pageFaults",
    "major_page_faults": "majorPageFaults",
}


def plain_pods(
    usage: NodeUsage,
    stats: Sequence[cri.PodSandboxStats],
    files: Mapping[str, PodFiles],
    of_drivers: Mapping[str, Sequence[Entry]],
) -> dict[str, Entry]:
    """By uid."""
    pods = {each.attributes.metadata.uid: pod_summary(each) for each in stats}
    for used in usage.pods:
        record = used.record
        reference = {"name": record.name, "namespace": record.namespace, "uid": record.uid}
        _lay_over(pods.setdefault(record.uid, {"podRef": reference, "containers": []}), used, usage)
    for uid, found in files.items():
        if uid in pods:
            _add_files(pods[uid], found, of_drivers.get(uid, ()))
    return pods


def pod_summary(stats: cri.PodSandboxStats) -> dict[str, Any]:
    """Return one pod from its sandbox's statistics, without values that the runtime did not read."""
    meta, linux = stats.attributes.metadata, stats.linux
    shown: dict[str, Any] = {"podRef": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}}
    shown |= _usage(linux)
    if linux.HasField("process"):
        shown["process_stats"] = {"process_count": linux.process.process_count.value}
    shown["containers"] = [_container(container) for container in linux.containers]
    return shown


def _container(stats: cri.ContainerStats) -> dict[str, Any]:
    shown = {"name": stats.attributes.metadata.name, **_usage(stats)}
    if stats.HasField("writable_layer"):
        layer = stats.writable_layer
        shown["rootfs"] = {
            "time": rfc3339(layer.timestamp / 1e9),
            **_values(layer, {"used_bytes": "usedBytes", "inodes_used": "inodesUsed"}),
        }
    return shown


def _usage(stats: cri.LinuxPodSandboxStats | cri.ContainerStats) -> dict[str, Any]:
    shown = {}
    if stats.HasField("cpu"):
        shown["cpu"] = {"time": rfc3339(stats.cpu.timestamp / 1e9), **_values(stats.cpu, _CPU)}
    if stats.HasField("memory"):
        shown["memory"] = {"time": rfc3339(stats.memory.timestamp / 1e9), **_values(stats.memory, _MEMORY)}
    return shown


def _values(message: Any, names: Mapping[str, str]) -> dict[str, int]:
    return {shown: getattr(message, name).value for name, shown in names.items() if message.HasField(name)}


def _lay_over(entry: Entry, used: UsedPod, usage: NodeUsage) -> None:
    """Prefer the values of cgroups and devices over those of the runtime."""
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


def _add_files(entry: Entry, files: PodFiles, of_drivers: Sequence[Entry]) -> None:
    """Add logs and volumes to a pod's entry. Its ephemeral storage counts its hosts file, logs, writable
    layers and ephemeral volumes."""
    used, inodes = files.hosts
    for container in entry["containers"]:
        logs = files.logs.get(container["name"])
        rootfs = container.get("rootfs")
        if rootfs is not None:
            container["rootfs"] = {**files.disk, **rootfs}
        if logs is not None:
            container["logs"] = logs
        for part in filter(None, (logs, rootfs)):
            used += part.get("usedBytes", 0)
            inodes += part.get("inodesUsed", 0)
    entry["volume"] = [*files.volumes, *of_drivers]
    for volume in files.volumes:
        if volume["name"] in files.ephemeral:
            used += volume["usedBytes"]
            inodes += volume["inodesUsed"]
    entry["ephemeral-storage"] = {**files.disk, "usedBytes": used, "inodesUsed": inodes}
