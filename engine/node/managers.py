"""Creates, starts and stops the managers of a node, in order.

Each manager receives what it needs from the node. Managers reach each other only through these parameters.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from errno import EADDRINUSE
from pathlib import Path
from typing import Protocol

import msgspec

from engine.admission.manager import Admission
from engine.api.errors import Refused
from engine.api.lifecycle import PodEnd
from engine.api.node import Node
from engine.api.pod import Pod
from engine.cgroups.best_effort_limiter import BestEffortLimiter
from engine.cgroups.manager import CgroupManager
from engine.cgroups.node_cgroups import NodeCgroups
from engine.containers.manager import ContainerGC
from engine.cri.client import RuntimeClient
from engine.cri.records import ContainerRecord
from engine.devices.manager import DeviceDirectories, DeviceManager, DevicePods
from engine.devices.pod_resources import SOCKET_NAME as POD_RESOURCES_SOCKET
from engine.devices.registration import SOCKET_NAME as REGISTRATION_SOCKET
from engine.eviction.cleanup import GarbageCollectors
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.eviction.readings import NodeView
from engine.host.node_context import NodeContext
from engine.host.sockets import is_served
from engine.host.stopping import stop_all
from engine.images.manager import ImageManager
from engine.node.logs.log_rotation import LogRotation
from engine.node.pinning import Pinning
from engine.node.runtime_view.runtime_watch import RuntimeWatch
from engine.probes.command_costs import CommandCosts
from engine.probes.manager import ProbeManager
from engine.probes.networks import PodNetworks
from engine.topologymanager.policy import Numa

PLUGINS, POD_RESOURCES = "device-plugins", "pod-resources"


class Managed(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class NodePods(Protocol):
    """List and end the pods of a node for its managers; `engine.node.pods.PodManager` implements it."""

    @property
    def known(self) -> bool:
        """Tell whether all pods are known."""

    def active(self) -> Sequence[Pod]: ...

    def all(self) -> Sequence[Pod]:
        """Return all pods, finished ones included."""

    async def kill(self, pod: Pod, end: PodEnd) -> None: ...

    def notify(self, uid: str) -> None: ...

    def is_gone(self, uid: str) -> bool: ...

    def is_over(self, uid: str) -> bool: ...

    def may_run(self, uid: str) -> bool: ...

    def is_terminating(self, uid: str) -> bool: ...


class ManagerListeners(msgspec.Struct, frozen=True):
    """Hold the functions of a running node that its managers call.

    `images_listed` receives the images that are present; `pull_image` pulls one, as in `ImageManager`.
    """

    images_listed: Callable[[Sequence[str], float], Awaitable[None]]
    pull_image: Callable[[str], Awaitable[None]]
    capacity_changed: Callable[[], None]
    conditions_changed: Callable[[], None]


class Managers:
    """Hold image GC, container GC, eviction, devices, probes and admission of one node.

    `pods()` returns the node's pods. They are created after the managers, which do not call it before
    `start_before_pods`. `view` tells what counts as the node for eviction, by default the whole machine.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        runtime: RuntimeClient,
        cgroups: NodeCgroups,
        watch: RuntimeWatch,
        pods: Callable[[], NodePods],
        view: NodeView | None,
        notify: ManagerListeners,
    ) -> None:
        self._context, self._runtime, self._cgroups, self._watch = context, runtime, cgroups, watch
        self._pods, self._notify = pods, notify
        self.images, self.containers = self._garbage_collectors()
        self.admission = Admission(
            node=Node(),
            kill_pod=self._kill_pod,
            recorder=context.recorder,
            decisions=context.decisions,
            registry=context.registry,
            section=context.kubengine_config.preemption,
            admission_section=context.kubengine_config.admission,
        )
        self.eviction = self._eviction(view)
        numa = Numa.of_machine()
        self.pinning = self._pinning(numa)
        self.devices = self._devices(numa)
        self.devices.publish_pinned(self.pinning)
        self.pinning.align_by(self.devices.policy)
        self.probes = ProbeManager(
            context,
            on_result=lambda result: pods().notify(result.pod_uid),
            runtime_socket=runtime.socket,
            networks=PodNetworks(runtime),
        )
        self._commands = CommandCosts(self.probes, runtime)
        logs = LogRotation(context, runtime, self._running_containers)
        self._before_pods: list[Managed] = [self.pinning.cpus, self.pinning.memory, self.devices, self.probes]
        self._beside_pods: list[Managed] = [self.images, self.containers, self.eviction, logs]
        self._beside_pods += self._best_effort_limit()

    def _running_containers(self) -> list[ContainerRecord]:
        return [c for record in self._watch.pods.values() for c in record.may_run]

    async def _kill_pod(self, pod: Pod, end: PodEnd) -> None:
        await self._pods().kill(pod, end)

    def _active_pods(self) -> Sequence[Pod]:
        return self._pods().active()

    def _garbage_collectors(self) -> tuple[ImageManager, ContainerGC]:
        pods = self._pods
        images = ImageManager(
            self._context,
            runtime=self._runtime,
            active_pods=self._active_pods,
            images_listed=self._notify.images_listed,
            pull=self._notify.pull_image,
            state_dir=self._context.root,
        )
        containers = ContainerGC(
            self._context,
            runtime=self._runtime,
            content_removed=lambda uid: pods().is_gone(uid),
            runtime_removed=lambda uid: pods().is_over(uid),
            sources_ready=lambda: pods().known,
        )
        return images, containers

    def _eviction(self, view: NodeView | None) -> EvictionManager:
        cgroups = self._cgroups
        pods_cgroup = cgroups.root_path() if cgroups.enabled else None
        return EvictionManager(
            self._context,
            EvictablePods(
                active=self._active_pods,
                kill=self._kill_pod,
                cgroup=cgroups.pod_path,
                swap_limit=cgroups.swap_limit if cgroups.settings.containers.cgroup_v2 else None,
            ),
            table=self.admission.admitted.table,
            runtime=self._runtime,
            collectors=GarbageCollectors(self.images, self.containers),
            conditions_changed=self._notify.conditions_changed,
            view=view or NodeView(pods_cgroup=pods_cgroup),
        )

    def _pinning(self, numa: Numa) -> Pinning:
        pinning = Pinning(
            self._context, numa=numa, cgroups=self._cgroups, runtime=self._runtime, watch=self._watch
        )
        pinning.divide_shared(self._context, self._active_pods)
        return pinning

    def _devices(self, numa: Numa) -> DeviceManager:
        pods, root = self._pods, self._context.root
        return DeviceManager(
            self._context,
            DevicePods(
                active=self._active_pods,
                sources_ready=lambda: pods().known,
                may_run=lambda uid: pods().may_run(uid),
                is_terminating=lambda uid: pods().is_terminating(uid),
                is_running=self._watch.runs,
                all=lambda: pods().all(),
            ),
            changed=self._notify.capacity_changed,
            directories=DeviceDirectories(root / PLUGINS, root / POD_RESOURCES),
            numa=numa,
            providers=self.pinning.hint_providers(),
        )

    def _best_effort_limit(self) -> list[Managed]:
        rules = self._cgroups.settings.best_effort_limit
        if rules is None or not isinstance(self._cgroups, CgroupManager):
            return []
        decisions, tasks = self._context.decisions, self._context.tasks
        return [BestEffortLimiter(self._cgroups, rules, decisions=decisions, tasks=tasks)]

    def by_component(self) -> dict[str, object]:
        """Return the components that describe themselves and take actions, by name."""
        return {
            "images": self.images,
            "containers": self.containers,
            "eviction": self.eviction,
            "devices": self.devices,
            "cpus": self.pinning.cpus,
            "memory": self.pinning.memory,
            "probes": self.probes,
            "probe-commands": self._commands,
            "admission": self.admission,
        }

    async def start_before_pods(self) -> None:
        """Start what pods need for their admission."""
        for part in self._before_pods:
            await part.start()

    async def start_beside_pods(self) -> None:
        """Start what watches over existing pods."""
        for part in self._beside_pods:
            await part.start()

    async def stop(self) -> None:
        """Stop every manager, even if one fails."""
        await stop_all(part.stop for part in (*self._beside_pods, *self._before_pods))


def refuse_served_sockets(root: Path) -> None:
    """Raise `Refused` if somebody, perhaps a kubelet, already serves one of our sockets."""
    for path in (root / PLUGINS / REGISTRATION_SOCKET, root / POD_RESOURCES / POD_RESOURCES_SOCKET):
        try:
            served = is_served(path)
        except OSError as error:
            raise Refused(error.strerror or str(error), subject=str(path), errno=error.errno) from None
        if served:
            raise Refused("another process serves this socket", subject=str(path), errno=EADDRINUSE)
