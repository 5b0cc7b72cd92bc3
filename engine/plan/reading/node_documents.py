"""Per-node documents besides the Node object: statistics, configuration, images, containers, devices.

Each document is recognised by its fields. Statistics name their node; the others belong to the node whose
name is in their path (`bundle.tar:nodes/worker-3/configz.json`, `worker-3.crictl-images.json`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import Meta

from engine.api import cpu_set as cpu_sets
from engine.api.errors import InvalidInput
from engine.cpumanager.checkpoint import CpuStateError
from engine.cpumanager.checkpoint import decode as decode_cpu_state
from engine.cpumanager.topology import Processor
from engine.memorymanager.checkpoint import MemoryStateError
from engine.memorymanager.checkpoint import decode as decode_memory_state
from engine.memorymanager.state import NodeState
from engine.plan.reading.documents import EMPTY, DocumentStruct, Head
from engine.plan.reading.lscpu import Lscpu, processors_of_lscpu
from engine.plan.reading.node_rows import NodeRows
from engine.plan.snapshot.columns import DEVICE_FIELDS
from engine.plan.snapshot.faults import FaultLog
from engine.plan.snapshot.node_cpus import processors_text
from engine.plan.snapshot.objects import configuration_object

_Int = int | None
Digits = Annotated[str, Meta(pattern=r"^[0-9]{0,19}\Z")]
"""A number that some tools write as text."""
NUMANumber = Annotated[str, Meta(pattern=r"^(-1|[0-5]?[0-9]|6[0-3])\Z")]
"""-1 if a device names no NUMA node; an agent can align up to 64 nodes."""


class MemoryStats(DocumentStruct):
    available_bytes: _Int = None
    working_set_bytes: _Int = None


class FsStats(DocumentStruct):
    capacity_bytes: _Int = None
    available_bytes: _Int = None
    used_bytes: _Int = None
    inodes: _Int = None
    inodes_free: _Int = None
    inodes_used: _Int = None


class RlimitStats(DocumentStruct):
    maxpid: _Int = None
    curproc: _Int = None


class RuntimeStatsDocument(DocumentStruct):
    image_fs: FsStats | None = None
    container_fs: FsStats | None = None


class SystemContainerStats(DocumentStruct):
    name: str = ""
    memory: MemoryStats | None = None


class NodeStats(DocumentStruct):
    node_name: str = ""
    memory: MemoryStats | None = None
    fs: FsStats | None = None
    runtime: RuntimeStatsDocument | None = None
    rlimit: RlimitStats | None = None
    system_containers: list[SystemContainerStats] | None = None


class PodRef(DocumentStruct):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class ProcessStats(DocumentStruct, rename=None):
    process_count: _Int = None


class ContainerStats(DocumentStruct):
    rootfs: FsStats | None = None


class PodStats(DocumentStruct):
    pod_ref: PodRef
    containers: list[ContainerStats] | None = None
    memory: MemoryStats | None = None
    ephemeral_storage: FsStats | None = msgspec.field(default=None, name="ephemeral-storage")
    process_stats: ProcessStats | None = msgspec.field(default=None, name="process_stats")


class Summary(DocumentStruct):
    node: NodeStats
    pods: list[PodStats] | None = None


class CrictlImage(DocumentStruct):
    id: str
    repo_tags: list[str] | None = None
    repo_digests: list[str] | None = None
    size: int | Digits = 0
    pinned: bool = False


class CrictlImages(DocumentStruct):
    images: list[CrictlImage]


class CrictlImageSpec(DocumentStruct):
    image: str = ""


class CrictlContainer(DocumentStruct):
    image: CrictlImageSpec | None = None
    image_ref: str = ""
    image_id: str = ""


class CrictlContainers(DocumentStruct):
    containers: list[CrictlContainer]


class DeviceCheckpointEntry(DocumentStruct, rename="pascal"):
    container_name: str
    resource_name: str
    pod_uid: str = msgspec.field(name="PodUID")
    device_ids: dict[NUMANumber, list[str] | None] | None = msgspec.field(default=None, name="DeviceIDs")


class CheckpointData(DocumentStruct, rename="pascal"):
    pod_device_entries: list[DeviceCheckpointEntry] | None = None
    registered_devices: dict[str, list[str] | None] | None = None


class NUMANode(DocumentStruct):
    id: Annotated[int, Meta(ge=0, le=63)] | NUMANumber = msgspec.field(default=0, name="ID")


class DeviceTopology(DocumentStruct):
    nodes: list[NUMANode] | None = None


class HeldDevices(DocumentStruct):
    """Hold devices of a container; tools use either spelling of the field names."""

    resource: str = msgspec.field(default="", name="resourceName")
    resource_snake: str = msgspec.field(default="", name="resource_name")
    ids: list[str] | None = msgspec.field(default=None, name="deviceIds")
    ids_snake: list[str] | None = msgspec.field(default=None, name="device_ids")
    topology: DeviceTopology | None = None


class ContainerDevices(DocumentStruct):
    name: str = ""
    devices: list[HeldDevices] | None = None


class PodDevices(DocumentStruct):
    name: str = ""
    namespace: str = ""
    containers: list[ContainerDevices] | None = None


class DeviceOwner(DocumentStruct):
    pod: str = ""
    pod_uid: str = msgspec.field(default="", name="podUID")
    container: str = ""


class AgentDevice(DocumentStruct):
    id: str
    health: str = ""
    numa: list[Annotated[int, Meta(ge=0, le=63)]] | None = None
    owners: list[DeviceOwner] | None = None


class AgentResource(DocumentStruct):
    name: str
    devices: list[AgentDevice] | None = None


class AgentDevices(DocumentStruct):
    """Hold the answer of `kubengine devices --json`."""

    resources: list[AgentResource]


class PodResources(DocumentStruct):
    pods: list[PodDevices] | None = msgspec.field(default=None, name="podResources")
    pods_snake: list[PodDevices] | None = msgspec.field(default=None, name="pod_resources")


class ContainerCpus(DocumentStruct):
    cpus: str = ""


class AgentProcessor(DocumentStruct):
    cpu: int
    core: int
    cache: int
    socket: int
    node: int


class AgentCpus(DocumentStruct):
    """Hold the answer of `kubengine cpus --json`."""

    processors: list[AgentProcessor]
    reserved: str | None = None
    containers: list[ContainerCpus] | None = None


class AgentMemory(DocumentStruct):
    """Hold the agent's description of the memory manager."""

    nodes: dict[int, NodeState]


Usage = dict[str, tuple[int | None, ...]]
"""By `namespace/name`: memory, disk, inodes, processes; bytes and inodes of writable layers."""


class NodeDocuments:
    """Collect per-node documents; `finish` assigns those whose node was not known yet."""

    def __init__(self, nodes: NodeRows, faults: FaultLog) -> None:
        self._nodes = nodes
        self._faults = faults
        self._waiting: list[tuple[str, str, bytes]] = []
        self._devices: dict[str, list[Any]] = {name: [] for name in DEVICE_FIELDS}
        self.usage: Usage = {}

    def add(self, head: Head, data: bytes, origin: str) -> bool:
        """Add a document and return whether it is one of these; records faults."""
        kind = _kind(head)
        if kind is None:
            return False
        if kind == "summary":
            self._decoded(kind, data, origin, "")
        else:
            self._waiting.append((kind, origin, bytes(data)))
        return True

    def finish(self) -> None:
        """Assign the waiting documents to their nodes, and compare images with containers."""
        names = sorted(self._nodes.index, key=len, reverse=True)
        used: dict[int, set[str]] = {}
        self._used = used
        for kind, origin, data in self._waiting:
            node = _node_in(origin, names)
            if node is None and len(names) == 1:
                node = names[0]
            if node is None:
                self._faults.add(origin, "", "", f"{kind}: no node's name is in its path")
            else:
                self._decoded(kind, data, origin, node)
        self._waiting.clear()
        self._nodes.mark_in_use(used)

    def device_table(self) -> pa.Table:
        schema = pa.schema(list(DEVICE_FIELDS.items()))
        columns = {name: pa.array(v, schema.field(name).type) for name, v in self._devices.items()}
        return pa.table(columns).sort_by([("node", "ascending")])

    def _decoded(self, kind: str, data: bytes, origin: str, node: str) -> None:
        try:
            getattr(self, f"_{kind}")(data, node)
        except InvalidInput as error:
            self._faults.add(origin, kind, error.subject, error.message)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            text, _, path = str(error).partition(" - at `$.")
            self._faults.add(origin, kind, path.rstrip("`"), text)

    def _summary(self, data: bytes, _: str) -> None:
        summary = msgspec.json.decode(data, type=Summary)
        node = summary.node
        number = self._nodes.row(node.node_name)
        memory, fs = node.memory or MemoryStats(), node.fs or FsStats()
        image_fs = (node.runtime and node.runtime.image_fs) or FsStats()
        container_fs = (node.runtime and node.runtime.container_fs) or FsStats()
        limits = node.rlimit or RlimitStats()
        all_pods = next((c.memory for c in node.system_containers or () if c.name == "pods"), None)
        all_pods = all_pods or MemoryStats()
        readings = {
            "memory_available": memory.available_bytes,
            "memory_working_set": memory.working_set_bytes,
            "pods_memory_available": all_pods.available_bytes,
            "pods_memory_working_set": all_pods.working_set_bytes,
            "nodefs_capacity": fs.capacity_bytes,
            "nodefs_available": fs.available_bytes,
            "nodefs_inodes": fs.inodes,
            "nodefs_inodes_free": fs.inodes_free,
            "imagefs_capacity": image_fs.capacity_bytes,
            "imagefs_available": image_fs.available_bytes,
            "imagefs_inodes": image_fs.inodes,
            "imagefs_inodes_free": image_fs.inodes_free,
            "containerfs_capacity": container_fs.capacity_bytes,
            "containerfs_available": container_fs.available_bytes,
            "containerfs_inodes": container_fs.inodes,
            "containerfs_inodes_free": container_fs.inodes_free,
            "pid_max": limits.maxpid,
            "pid_used": limits.curproc,
        }
        kept = {name: value for name, value in readings.items() if value is not None and 0 <= value < 2**62}
        self._nodes.set_readings(number, kept)
        for pod in summary.pods or ():
            disk = pod.ephemeral_storage or FsStats()
            layers = [container.rootfs or FsStats() for container in pod.containers or ()]
            self.usage[f"{pod.pod_ref.namespace}/{pod.pod_ref.name}"] = (
                pod.memory.working_set_bytes if pod.memory else None,
                disk.used_bytes,
                disk.inodes_used,
                pod.process_stats.process_count if pod.process_stats else None,
                _sum(layer.used_bytes for layer in layers),
                _sum(layer.inodes_used for layer in layers),
            )

    def _configz(self, data: bytes, node: str) -> None:
        config = msgspec.json.decode(data, type=Head).kubeletconfig
        text = msgspec.json.format(bytes(config), indent=-1).decode()
        configuration_object(text)
        self._nodes.set_config(self._nodes.row(node), text)

    def _crictl_images(self, data: bytes, node: str) -> None:
        images = msgspec.json.decode(data, type=CrictlImages).images
        number = self._nodes.row(node)
        self._nodes.replace_images(number)
        for image in images:
            names = [*(image.repo_tags or ()), *(image.repo_digests or ())]
            size = int(image.size or 0)
            self._nodes.add_image(
                number, image.id, " ".join(names), size, source="runtime", pinned=image.pinned, in_use=None
            )

    def _crictl_ps(self, data: bytes, node: str) -> None:
        used = self._used.setdefault(self._nodes.row(node), set())
        for container in msgspec.json.decode(data, type=CrictlContainers).containers:
            used |= {container.image_ref, container.image_id}
            used.add(container.image.image if container.image else "")
        used.discard("")

    def _checkpoint(self, data: bytes, node: str) -> None:
        document = msgspec.json.decode(msgspec.json.decode(data, type=Head).data, type=CheckpointData)
        held: set[tuple[str, str]] = set()
        for entry in document.pod_device_entries or ():
            for numa, devices in (entry.device_ids or {}).items():
                for device in devices or ():
                    held.add((entry.resource_name, device))
                    owner = (entry.pod_uid, entry.container_name)
                    self._device(node, entry.resource_name, device, "" if numa == "-1" else numa, *owner)
        for resource, devices in (document.registered_devices or {}).items():
            for device in devices or ():
                if (resource, device) not in held:
                    self._device(node, resource, device, "", "", "")

    def _pod_resources(self, data: bytes, node: str) -> None:
        answer = msgspec.json.decode(data, type=PodResources)
        for pod in (*(answer.pods or ()), *(answer.pods_snake or ())):
            for container in pod.containers or ():
                for entry in container.devices or ():
                    places = entry.topology.nodes if entry.topology else None
                    numa = ",".join(str(place.id) for place in places or ())
                    for device in (*(entry.ids or ()), *(entry.ids_snake or ())):
                        resource = entry.resource or entry.resource_snake
                        self._device(
                            node, resource, device, numa, f"{pod.namespace}/{pod.name}", container.name
                        )

    def _agent_devices(self, data: bytes, node: str) -> None:
        described = msgspec.json.decode(data, type=AgentDevices)
        for resource in described.resources:
            for device in resource.devices or ():
                numa = ",".join(map(str, device.numa or ()))
                owner = next(iter(device.owners or ()), DeviceOwner())
                held_by = owner.pod_uid or owner.pod
                healthy = device.health == "Healthy"
                self._device(node, resource.name, device.id, numa, held_by, owner.container, healthy=healthy)

    def _agent_cpus(self, data: bytes, node: str) -> None:
        described = msgspec.json.decode(data, type=AgentCpus)
        number = self._nodes.row(node)
        self._nodes.set_processors(
            number,
            processors_text([Processor(*msgspec.structs.astuple(one)) for one in described.processors]),
        )
        kept = self._nodes.pinning(number)
        kept.exclusive = _all_cpus(one.cpus for one in described.containers or ())
        kept.reserved = described.reserved

    def _lscpu(self, data: bytes, node: str) -> None:
        self._nodes.set_processors(
            self._nodes.row(node),
            processors_text(processors_of_lscpu(msgspec.json.decode(data, type=Lscpu).cpus)),
        )

    def _cpu_state(self, data: bytes, node: str) -> None:
        try:
            entries = decode_cpu_state(data).entries
        except CpuStateError as error:
            raise InvalidInput(str(error)) from None
        self._nodes.pinning(self._nodes.row(node)).exclusive = _all_cpus(
            cpus for containers in entries.values() for cpus in containers.values()
        )

    def _memory_state(self, data: bytes, node: str) -> None:
        try:
            state = decode_memory_state(data)
        except MemoryStateError as error:
            raise InvalidInput(str(error)) from None
        if state.machine_state:
            self._nodes.pinning(self._nodes.row(node)).memory = state.machine_state

    def _agent_memory(self, data: bytes, node: str) -> None:
        described = msgspec.json.decode(data, type=AgentMemory)
        self._nodes.pinning(self._nodes.row(node)).memory = described.nodes or None

    def _device(
        self,
        node: str,
        resource: str,
        device: str,
        numa: str,
        pod: str,
        container: str,
        *,
        healthy: bool = True,
    ) -> None:
        values = (self._nodes.row(node), resource, device, numa, healthy, pod, container)
        for column, value in zip(self._devices.values(), values, strict=True):
            column.append(value)


def _all_cpus(lists: Iterable[str]) -> str:
    found = 0
    for cpus in lists:
        found |= cpu_sets.parse(cpus)
    return cpu_sets.text(found)


def _sum(amounts: Iterable[int | None]) -> int | None:
    """Return the sum, or None if a value is unknown or there are no values."""
    known = list(amounts)
    return None if not known or None in known else sum(amount or 0 for amount in known)


def _kind(head: Head) -> str | None:
    if head.kind and head.kind != "Status":
        return None
    given = {name for name in Head.__struct_fields__ if getattr(head, name) is not EMPTY}
    if "kubeletconfig" in given:
        return "configz"
    if {"node", "pods"} <= given:
        return "summary"
    if {"data", "checksum"} <= given:
        return "checkpoint"
    if "pod_resources" in given or "pod_resources_snake" in given:
        return "pod_resources"
    if "processors" in given or "default_cpu_set" in given:
        return "agent_cpus" if "processors" in given else "cpu_state"
    if "machine_state" in given or {"nodes", "containers"} <= given:
        return "memory_state" if "machine_state" in given else "agent_memory"
    if "resources" in given:
        return "agent_devices"
    if "cpus" in given:
        return "lscpu"
    if "images" in given:
        return "crictl_images"
    return "crictl_ps" if "containers" in given else None


def _node_in(origin: str, names: list[str]) -> str | None:
    """Return the longest node name that is a part of the path or a prefix of a part."""
    parts = [part for part in re.split(r"[/:]", origin) if part]
    for name in names:
        for part in parts:
            if part == name or (part.startswith(name) and part[len(name)] in "._-"):
                return name
    return None
