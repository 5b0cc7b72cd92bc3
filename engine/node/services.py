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
from engine.node.actions import Health
from engine.node.addresses import HostAddresses
from engine.node.backoff import Backoff
from engine.node.belonging import Belonging
from engine.node.image_pull import ImagePuller
from engine.node.pod.accepted import AcceptedPods
from engine.node.pod.kept_end import KeptEnds
from engine.node.pod_metrics import PodMetrics
from engine.node.runtime_health import RuntimeHealth
from engine.node.runtime_watch import RuntimeWatch
from engine.node.start_counts import StartCounts
from engine.node.user_namespaces import UserNamespaces
from engine.node.volumes import PodVolumes, VolumeKeeper


class Accounts(Protocol):
    """What pods hold of the node; `engine.node.gatekeeper.Gatekeeper` keeps them."""

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
    """Who is probed, and what follows from it; `engine.node.probing.Probing` is it."""

    def accepted(self, pod: Pod) -> None:
        """Begin to probe the pod."""

    def observed(self, pod: Pod, record: PodRecord) -> None:
        """What the runtime holds of the pod now."""

    def ending(self, uid: str) -> None:
        """The pod is to end: only readiness goes on."""

    def released(self, uid: str) -> None:
        """Nothing of the pod runs any more."""

    def health(self, uid: str, container: ContainerRecord) -> Health: ...

    def ready(self, uid: str, container: ContainerRecord) -> bool: ...

    def remember(self, pod: Pod) -> None:
        """The pod's status has changed: keep what it says of readiness."""


class Devices(Protocol):
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
    volume_keeper: VolumeKeeper
    users: UserNamespaces
    accepted: AcceptedPods
    ends: KeptEnds
    accounts: Accounts
    probes: Probes
    devices: Devices
    belonging: Belonging
    recorder: EventRecorder
    decisions: Decisions
    metrics: PodMetrics
    starts: StartCounts
    tasks: Tasks
    backoff: Backoff
    starting: asyncio.Semaphore
