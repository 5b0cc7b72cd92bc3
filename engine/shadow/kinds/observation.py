"""Hold one observation of a node: the inputs of all comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from engine.api.config import KubeletConfiguration
from engine.api.node import Node
from engine.api.pod import Pod
from engine.cpumanager.checkpoint import CpuCheckpoint
from engine.cri.records import PodRecord
from engine.devices.checkpoint import Checkpoint
from engine.dra.table import ClaimState
from engine.eviction.layout import Layout
from engine.eviction.usage import ContainerUsage, Disk
from engine.images.records import SeenImage
from engine.memorymanager.checkpoint import MemoryCheckpoint
from engine.wire.podresources_v1_pb2 import AllocatableResourcesResponse, PodResources

ENDED: Final = ("Succeeded", "Failed")
STARTED: Final = "process_start_time_seconds"
"""The series whose value changes when the kubelet restarts."""


@dataclass(frozen=True, slots=True)
class MeasuredPod:
    """Hold the kubelet's statistics of one pod: bytes of memory and of local storage, and processes; None if
    unknown. `containers` and `volumes` are the parts of its storage, by name.
    """

    memory: int | None = None
    storage: int | None = None
    processes: int | None = None
    containers: Mapping[str, ContainerUsage] = field(default_factory=dict)
    volumes: Mapping[str, Disk] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileSystem:
    """Hold a file system of the kubelet's statistics, in bytes and inodes; None if unknown."""

    capacity: int | None = None
    available: int | None = None
    inodes: int | None = None
    inodes_free: int | None = None

    def same_as(self, other: FileSystem) -> bool:
        """Return whether both are the same file system. Statistics name no device, but equal sizes are no
        coincidence.
        """
        return (self.capacity, self.inodes) == (other.capacity, other.inodes)


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    """Hold the kubelet's statistics of the node, and of its pods by uid. Amounts of memory are in bytes; None
    if unknown.

    `pods_available` and `pods_working_set` are those of the cgroup of all pods, whose limit is the
    allocatable memory. `containerfs` is the file system of the writable layers.
    """

    memory_available: int | None = None
    memory_working_set: int | None = None
    pods_available: int | None = None
    pods_working_set: int | None = None
    nodefs: FileSystem = FileSystem()
    imagefs: FileSystem = FileSystem()
    containerfs: FileSystem = FileSystem()
    max_pids: int | None = None
    processes: int | None = None
    pods: Mapping[str, MeasuredPod] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """Return which file systems images and writable layers share with logs and volumes."""
        if self.imagefs.capacity is None or self.imagefs.same_as(self.nodefs):
            return "shared"
        return "split" if self.containerfs.same_as(self.nodefs) else "imagefs"


@dataclass(frozen=True, slots=True)
class SeenImages:
    """Hold the images of the runtime, the keys that containers and image volumes use, and their file
    system.
    """

    images: Sequence[SeenImage]
    used: frozenset[str]
    filesystem: FileSystem = FileSystem()

    def uses(self, image: SeenImage) -> bool:
        """Return whether a container or volume uses the image, by its id or one of its names."""
        return image.id in self.used or not self.used.isdisjoint(image.names)


@dataclass(frozen=True, slots=True)
class SeenResources:
    """Hold the answers of the pod-resources API: List by namespace and name, and GetAllocatableResources."""

    pods: Mapping[str, PodResources]
    allocatable: AllocatableResourcesResponse


@dataclass(frozen=True, slots=True)
class Observation:
    """Hold one observation: `at` is a Unix time, `now` seconds of a monotonic clock.

    `pods` are the kubelet's, by uid, and `records` the runtime's. `node` is the API server's or, without one
    (`node_known` false), derived from configuration and machine: it lacks labels and taints that others set.
    `use` is None if the kubelet serves no statistics; `series` are its metrics by their text up to the
    value, without those of probes if `probes_served` is false. `cpus`, `memory`, `devices` and `claims` are
    the state files of the managers. `images` is None at observations that did not read them, `resources` if
    the pod-resources API does not answer.
    """

    at: float
    now: float
    config: KubeletConfiguration
    pods: Mapping[str, Pod]
    records: Mapping[str, PodRecord]
    node: Node
    node_known: bool = False
    use: MeasuredNode | None = None
    series: Mapping[str, float] = field(default_factory=dict)
    probes_served: bool = False
    cpus: CpuCheckpoint | None = None
    memory: MemoryCheckpoint | None = None
    devices: Checkpoint | None = None
    claims: Sequence[ClaimState] = ()
    images: SeenImages | None = None
    resources: SeenResources | None = None

    def active(self) -> Sequence[Pod]:
        """Return the pods that have not ended."""
        return [pod for pod in self.pods.values() if pod.status.phase not in ENDED]

    def record(self, uid: str) -> PodRecord:
        """Return what the runtime has of a pod; an empty record if it has nothing."""
        return self.records.get(uid) or PodRecord(uid, "", "")
