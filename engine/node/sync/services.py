"""What carries out pods' lives works with: the node, its runtime, and who keeps what pods have of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.events import EventRecorder
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.cgroups.node_cgroups import NodeCgroups
from engine.cri.client import RuntimeClient
from engine.cri.records import ContainerRecord, PodRecord
from engine.devices.run_options import DeviceRunOptions
from engine.host.tasks import Tasks
from engine.node.controlplane.control_plane import ControlPlane
from engine.node.images.pull import ImagePuller
from engine.node.nodeinfo.addresses import HostAddresses
from engine.node.pod.accepted_spec import AcceptedSpecs
from engine.node.pod.backoff import Backoff
from engine.node.pod.termination_record import TerminationRecords
from engine.node.runtime_view.runtime_health import RuntimeHealth
from engine.node.runtime_view.runtime_watch import RuntimeWatch
from engine.node.spec.user_namespaces import UserNamespaces
from engine.node.sync.actions import ContainerHealth
from engine.node.sync.pod_metrics import PodMetrics
from engine.node.sync.start_counts import StartCounts
from engine.node.volumes import PodVolumes, VolumeManager


class ResourceAccounting(Protocol):
    """What pods hold of the node; `engine.node.pod_admission.PodAdmission` keeps them."""

    def allocatable(self) -> Mapping[str, Quantity]:
        """What the node can give, its devices included."""

    def used_beside(self, uid: str) -> Mapping[str, Quantity]:
        """Summed requests of cpu and memory of all pods on the node but one."""

    def judged_by(self, pod: Pod) -> Mapping[str, Any]:
        """What an admission of the pod looks at, JSON-able."""

    def resized(self, pod: Pod) -> None:
        """The pod holds other amounts from now on."""

    def observed(self, pod: Pod, record: PodRecord) -> None:
        """What the runtime holds of the pod now."""

    def leaves(self, uid: str) -> None:
        """The pod is to end: nobody is judged by it any more, but what it holds is waited for."""

    def released(self, pod: Pod) -> None:
        """The pod holds nothing any more."""


class Probes(Protocol):
    """Who is probed, and what follows from it; `engine.node.sync.probing.Probing` is it."""

    def accepted(self, pod: Pod) -> None:
        """Begin to probe the pod."""

    def observed(self, pod: Pod, record: PodRecord) -> None:
        """What the runtime holds of the pod now."""

    def ending(self, uid: str) -> None:
        """The pod is to end: only readiness goes on."""

    def released(self, uid: str) -> None:
        """Nothing of the pod runs any more."""

    def health(self, uid: str, container: ContainerRecord) -> ContainerHealth: ...

    def ready(self, uid: str, container: ContainerRecord) -> bool: ...

    def remember(self, pod: Pod) -> None:
        """The pod's status has changed: keep what it says of readiness."""


class ContainerDevices(Protocol):
    """`engine.devices.manager.DeviceManager`, for containers of pods that have their devices."""

    def container_config(self, pod: Pod, container_name: str) -> Awaitable[DeviceRunOptions]: ...

    def health(self, pod_uid: str, container_name: str) -> Mapping[str, Mapping[str, bool]]:
        """What a container holds: resource → device → whether it is healthy."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node is. `root` is its own directory, `clock` gives Unix seconds."""

    config: KubeletConfiguration
    root: Path
    addresses: HostAddresses
    runtime_name: str
    clock: Callable[[], float]

    @property
    def host_ips(self) -> tuple[str, ...]:
        """One address or one of each family, as they are now."""
        return self.addresses.ips

    @property
    def host_ip(self) -> str:
        """The first, by whose family pods go."""
        return self.host_ips[0]


@dataclass(frozen=True, slots=True)
class Services:
    """One per node. `starting` limits how many pods are started at once."""

    node: NodeFacts
    runtime: RuntimeClient
    watch: RuntimeWatch
    runtime_health: RuntimeHealth
    images: ImagePuller
    cgroups: NodeCgroups
    volumes: PodVolumes
    volume_keeper: VolumeManager
    users: UserNamespaces
    accepted: AcceptedSpecs
    ends: TerminationRecords
    accounts: ResourceAccounting
    probes: Probes
    devices: ContainerDevices
    belonging: ControlPlane
    recorder: EventRecorder
    decisions: Decisions
    metrics: PodMetrics
    starts: StartCounts
    tasks: Tasks
    backoff: Backoff
    starting: asyncio.Semaphore
