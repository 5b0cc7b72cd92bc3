"""Creates, starts and stops the managers of a node, in order.

Each manager receives what it needs from the node, and knows the others only through what it is given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from errno import EADDRINUSE
from pathlib import Path
from typing import Protocol

from engine.admission.manager import Admission
from engine.api.errors import Refused
from engine.api.node import Node
from engine.cgroups.best_effort_limiter import BestEffortSqueeze
from engine.cgroups.manager import CgroupManager
from engine.cgroups.node_cgroups import NodeCgroups
from engine.containers.manager import ContainerGC
from engine.cri.client import RuntimeClient
from engine.devices.manager import DeviceManager
from engine.devices.pod_resources import SOCKET_NAME as POD_RESOURCES_SOCKET
from engine.devices.registration import SOCKET_NAME as REGISTRATION_SOCKET
from engine.eviction.manager import EvictionManager
from engine.eviction.readings import NodeView
from engine.host.sockets import is_served
from engine.host.stopping import stop_all
from engine.images.manager import ImageManager
from engine.node.logs.log_rotation import LogRotation
from engine.node.nodeinfo.context import NodeContext
from engine.node.pinning import Pinning
from engine.node.pods import PodManager
from engine.node.runtime_view.runtime_watch import RuntimeWatch
from engine.probes.command_costs import CommandCosts
from engine.probes.manager import ProbeManager
from engine.probes.networks import PodNetworks
from engine.topologymanager.policy import Numa

PLUGINS, POD_RESOURCES = "device-plugins", "pod-resources"


class Managed(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Managers:
    """Image GC, container GC, eviction, devices, probes and admission of one node.

    `pods()` returns the node's pods. They are created after the managers, which do not call it before
    `start_before_pods`. `images_looked_at` receives the images that are present; `pull_image` pulls one, as
    in `ImageManager`.
    """

    def __init__(
        self,
        *,
        setting: NodeContext,
        runtime: RuntimeClient,
        cgroups: NodeCgroups,
        watch: RuntimeWatch,
        pods: Callable[[], PodManager],
        images_looked_at: Callable[[Sequence[str], float], Awaitable[None]],
        pull_image: Callable[[str], Awaitable[None]],
        capacity_changed: Callable[[], None],
        conditions_changed: Callable[[], None],
    ) -> None:
        config, section = setting.config, setting.kubengine_config
        recorder, registry, tasks = setting.recorder, setting.registry, setting.tasks
        decisions = setting.decisions
        root, clock = setting.root, setting.clock
        self.images = ImageManager(
            runtime=runtime,
            config=config,
            recorder=recorder,
            decisions=decisions,
            section=section.images,
            registry=registry,
            tasks=tasks,
            active_pods=lambda: pods().active(),
            looked_at=images_looked_at,
            pull=pull_image,
            state_dir=root,
            clock=clock,
        )
        self.containers = ContainerGC(
            runtime=runtime,
            recorder=recorder,
            decisions=decisions,
            section=section.container_gc,
            tasks=tasks,
            content_removed=lambda uid: pods().is_gone(uid),
            runtime_removed=lambda uid: pods().is_over(uid),
            sources_ready=lambda: pods().known,
            pod_logs_dir=Path(config.pod_logs_dir),
            clock=clock,
        )
        self.admission = Admission(
            node=Node(),
            kill_pod=lambda pod, end: pods().kill(pod, end),
            recorder=recorder,
            decisions=decisions,
            registry=registry,
            section=section.preemption,
            admission_section=section.admission,
        )
        pods_cgroup = cgroups.root_path() if cgroups.enabled else None
        self.eviction = EvictionManager(
            config=config,
            recorder=recorder,
            decisions=decisions,
            active_pods=lambda: pods().active(),
            kill_pod=lambda pod, end: pods().kill(pod, end),
            pod_cgroup=cgroups.pod_path,
            table=self.admission.admitted.table,
            section=section.eviction,
            registry=registry,
            tasks=tasks,
            runtime=runtime,
            images=self.images,
            containers=self.containers,
            conditions_changed=conditions_changed,
            swap_limit=cgroups.swap_limit if cgroups.settings.containers.cgroup_v2 else None,
            root_dir=root,
            view=setting.view or NodeView(pods_cgroup=pods_cgroup),
            clock=clock,
        )
        numa = Numa.of_machine()
        self.pinning = Pinning(setting, numa=numa, cgroups=cgroups, runtime=runtime, watch=watch)
        self.devices = DeviceManager(
            config=config,
            section=section.devices,
            active_pods=lambda: pods().active(),
            decisions=decisions,
            registry=registry,
            tasks=tasks,
            sources_ready=lambda: pods().known,
            may_run=lambda uid: pods().may_run(uid),
            leaves=lambda uid: pods().leaves(uid),
            is_running=watch.runs,
            changed=capacity_changed,
            clock=clock,
            plugin_dir=root / PLUGINS,
            pod_resources_dir=root / POD_RESOURCES,
            numa=numa,
            providers=[self.pinning.cpus, self.pinning.memory],
        )
        self.devices.show_pinned(self.pinning)
        self.probes = ProbeManager(
            section=section.probes,
            recorder=recorder,
            registry=registry,
            clock=clock,
            on_result=lambda result: pods().notify(result.pod_uid),
            runtime_socket=runtime.socket,
            networks=PodNetworks(runtime),
            decisions=decisions,
            tasks=tasks,
        )
        self._commands = CommandCosts(self.probes, runtime)
        self._logs = LogRotation(
            config=config,
            runtime=runtime,
            running=lambda: [c for record in watch.pods.values() for c in record.may_run],
            clock=clock,
            tasks=tasks,
        )
        self._before_pods: tuple[Managed, ...] = (
            self.pinning.cpus,
            self.pinning.memory,
            self.devices,
            self.probes,
        )
        self._beside_pods: tuple[Managed, ...] = (
            self.images,
            self.containers,
            self.eviction,
            self._logs,
            *self._squeeze(setting, cgroups),
        )

    @staticmethod
    def _squeeze(setting: NodeContext, cgroups: NodeCgroups) -> list[Managed]:
        rules = cgroups.settings.squeeze
        if rules is None or not isinstance(cgroups, CgroupManager):
            return []
        return [BestEffortSqueeze(cgroups, rules, decisions=setting.decisions, tasks=setting.tasks)]

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
