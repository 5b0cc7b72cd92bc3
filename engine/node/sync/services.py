"""Lists the parts of a node that run its pods: the runtime, and the managers of what pods hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.pod import Container, Pod
from engine.api.quantity import Quantity
from engine.cgroups.formulas.containers import ContainerResources
from engine.cgroups.node_cgroups import NodeCgroups
from engine.cgroups.resize import ResizeDecision
from engine.containers.backoff import Backoff, restart_backoff
from engine.cri.client import RuntimeClient
from engine.cri.records import ContainerRecord, PodRecord
from engine.devices.run_options import DeviceRunOptions
from engine.dra.manager import ClaimManager
from engine.host.node_context import NodeContext
from engine.node.controlplane.control_plane import ControlPlane
from engine.node.images.pull import ImagePuller
from engine.node.nodeinfo.addresses import HostAddresses
from engine.node.pod.records import AcceptedSpecs, TerminationRecords
from engine.node.runtime_view.runtime_health import RuntimeHealth
from engine.node.runtime_view.runtime_watch import RuntimeWatch
from engine.node.spec.user_namespaces import UserNamespaceAllocator
from engine.node.sync.actions import ContainerHealth
from engine.node.sync.pod_metrics import PodMetrics
from engine.node.volumes import PodVolumes, VolumeManager

STARTS_AT_ONCE, FOREIGN_STARTS_AT_ONCE = 8, 64


class ResourceAccounting(Protocol):
    """Account for what pods hold of the node; `engine.node.pod_admission.PodAdmission` implements it."""

    def allocatable(self) -> Mapping[str, Quantity]:
        """Return what the node can allocate, including devices."""

    def used_beside(self, uid: str) -> Mapping[str, Quantity]:
        """Return the summed CPU and memory requests of all pods on the node but one."""

    def judged_by(self, pod: Pod) -> Mapping[str, Any]:
        """Return the inputs of an admission decision about the pod, ready for JSON."""

    def resized(self, pod: Pod) -> None:
        """Account for the changed amounts of a resized pod."""

    def observed(self, pod: Pod, record: PodRecord) -> None:
        """Update from the runtime's record of the pod."""

    def terminating(self, uid: str) -> None:
        """Stop counting the pod in admission decisions, since it ends; others still wait for what
        it holds.
        """

    def released(self, pod: Pod) -> None:
        """Release everything that the pod holds."""


class Probes(Protocol):
    """Control the probes of pods; `engine.node.sync.probing.Probing` implements it."""

    def accepted(self, pod: Pod) -> None:
        """Start probing the pod."""

    def observed(self, pod: Pod, record: PodRecord, host_ips: Sequence[str]) -> None:
        """Update from the runtime's record of the pod, with the node's addresses."""

    def ending(self, uid: str) -> None:
        """Stop all probes but readiness, since the pod is terminating."""

    def released(self, uid: str) -> None:
        """Stop all probes, since nothing of the pod runs any longer."""

    def health(self, uid: str, container: ContainerRecord) -> ContainerHealth: ...

    def ready(self, uid: str, container: ContainerRecord) -> bool: ...

    def remember(self, pod: Pod) -> None:
        """Store the readiness that the pod's changed status reports."""


class DeviceProvider(Protocol):
    """Provide allocated devices to containers; `engine.devices.manager.DeviceManager` implements it."""

    def container_config(self, pod: Pod, container_name: str) -> Awaitable[DeviceRunOptions]: ...

    def health(self, pod_uid: str, container_name: str) -> Mapping[str, Mapping[str, bool]]:
        """Return the health of a container's devices: resource → device → healthy."""


class ContainerPlacement(Protocol):
    """Choose the CPUs and NUMA nodes of containers; `engine.node.pinning.Pinning` implements it."""

    def place(self, pod: Pod, container: Container, values: ContainerResources) -> ContainerResources:
        """Add a container's CPUs and NUMA nodes to its configuration for the runtime."""

    def resize(self, old: Pod, new: Pod) -> ResizeDecision:
        """Reserve the CPUs and NUMA nodes' memory of a running pod's new amounts, or say why not."""

    async def wait_placed(self, pod: Pod) -> None:
        """Return when each container of the pod runs on its exclusive CPUs. Raises `Refused`."""

    def resized(self, pod: Pod) -> None:
        """Handle a resized pod, whose containers have their new amounts."""

    def starting(self, pod: Pod, container: Container) -> None:
        """Handle a created container that is about to start."""

    def containers_changed(self) -> None:
        """Handle containers that started or stopped."""


class RuntimeServices(msgspec.Struct, frozen=True):
    """Hold the runtime: its client, the view of its pods, its health, its name and version."""

    client: RuntimeClient
    watch: RuntimeWatch
    health: RuntimeHealth
    name: str
    version: str


class VolumeServices(msgspec.Struct, frozen=True):
    """Hold the directories of pods, and the manager that mounts volumes in them."""

    directories: PodVolumes
    manager: VolumeManager


class PodRecords(msgspec.Struct, frozen=True):
    """Hold the records of pods: the accepted spec, and that a pod terminates.

    `forget` forgets all records of a pod, whose directory is gone.
    """

    accepted: AcceptedSpecs
    terminations: TerminationRecords
    forget: Callable[[str], None]


class Allocations(msgspec.Struct, frozen=True):
    """Hold the allocators of the machine's resources: cgroups, devices, claims, CPUs and NUMA nodes, user
    ids.
    """

    cgroups: NodeCgroups
    devices: DeviceProvider
    claims: ClaimManager
    placement: ContainerPlacement
    users: UserNamespaceAllocator


class StartControl(msgspec.Struct, frozen=True):
    """Limit starts of containers: `slots` is how many pods may start at once; `backoff` delays restarts.

    `foreign_slots` are for pods with volumes that the agent did not make: if their file server is gone, the
    runtime waits for it, and the start holds its slot until the runtime's deadline.
    """

    slots: asyncio.Semaphore
    foreign_slots: asyncio.Semaphore
    backoff: Backoff

    @classmethod
    def create(cls, config: KubeletConfiguration, decisions: Decisions) -> StartControl:
        """Return the limits of a node."""
        limits = asyncio.Semaphore(STARTS_AT_ONCE), asyncio.Semaphore(FOREIGN_STARTS_AT_ONCE)
        backoff = restart_backoff(config)
        decisions.remembered["restarts"] = backoff.entries
        return cls(*limits, backoff)


class PodListener(Protocol):
    """Follow the pods of the node; `engine.node.podsapi.watchers.PodWatchers` implements it."""

    def pod_changed(self, pod: Pod) -> None:
        """Handle a pod's changed status, spec or metadata."""

    def pod_gone(self, pod: Pod) -> None:
        """Handle a pod that the node no longer has."""


class PodChanged(Protocol):
    """Pass on a pod's changed status; `may_run` is false once none of its containers runs or will run."""

    def __call__(self, pod: Pod, *, may_run: bool) -> None: ...


class Services(msgspec.Struct, frozen=True):
    """Hold the parts of a node that run its pods; `operations.PodOperations` passes each only what it
    uses. `listeners` follow the pods besides the control plane.
    """

    context: NodeContext
    addresses: HostAddresses
    runtime: RuntimeServices
    images: ImagePuller
    volumes: VolumeServices
    records: PodRecords
    admission: ResourceAccounting
    probes: Probes
    allocations: Allocations
    starts: StartControl
    control_plane: ControlPlane
    metrics: PodMetrics
    listeners: list[PodListener] = []

    def pod_changed(self, pod: Pod, *, may_run: bool) -> None:
        """Tell the control plane and the listeners about a pod's changed status."""
        self.control_plane.pod_changed(pod, may_run=may_run)
        self.describe_pod(pod)

    def describe_pod(self, pod: Pod) -> None:
        """Tell the listeners about metadata or conditions that came from the pod's source."""
        for listener in self.listeners:
            listener.pod_changed(pod)
