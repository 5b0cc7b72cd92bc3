"""What pod workers share: the node's configuration, its rooms and its picture of the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from engine.api.config import KubeletConfiguration
from engine.api.events import EventRecorder
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.cgroups.node_cgroups import NodeCgroups
from engine.cri.client import RuntimeClient
from engine.cri.records import ContainerRecord, PodRecord
from engine.devices.run_options import DeviceRunOptions
from engine.host.tasks import Tasks
from engine.node.actions import Health
from engine.node.backoff import Backoff
from engine.node.image_pull import ImagePuller
from engine.node.pod.kept_end import KeptEnds
from engine.node.runtime_health import RuntimeFeatures
from engine.node.runtime_watch import RuntimeWatch
from engine.node.user_namespaces import UserNamespaces
from engine.node.volumes import PodVolumes


@dataclass(slots=True)
class Services:
    """One per node. Callables stand for rooms that a worker asks one question of."""

    config: KubeletConfiguration
    node_name: str
    host_ip: str
    root: Path
    clock: Callable[[], float]
    runtime: RuntimeClient
    runtime_name: str
    watch: RuntimeWatch
    volumes: PodVolumes
    cgroups: NodeCgroups
    images: ImagePuller
    recorder: EventRecorder
    tasks: Tasks
    backoff: Backoff
    starting: asyncio.Semaphore
    users: UserNamespaces
    features: Callable[[], RuntimeFeatures]
    allocatable: Callable[[], Mapping[str, Quantity]]
    used_beside: Callable[[str], Mapping[str, Quantity]]
    health: Callable[[str, ContainerRecord], Health]
    ready: Callable[[str, ContainerRecord], bool]
    devices: Callable[[Pod, str], Awaitable[DeviceRunOptions]]
    lease: Callable[[str], AbstractAsyncContextManager[None]]
    observed: Callable[[Pod, PodRecord], None]
    ends: KeptEnds
    ending: Callable[[str], None]
    leaves: Callable[[str], None]
    released: Callable[[Pod], None]
    pod_changed: Callable[[Pod], None]
    pod_resized: Callable[[Pod], None]
