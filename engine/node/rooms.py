"""The rooms of a running node beside its pods: made together, started and stopped in order.

Each gets what it needs from the node and knows nothing of the others but what is passed to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from errno import EADDRINUSE
from pathlib import Path
from typing import Protocol

from engine.admission.manager import Admission
from engine.api.config import KubeletConfiguration
from engine.api.errors import Refused
from engine.api.events import EventRecorder
from engine.api.kubengine_config import KubengineConfiguration
from engine.api.lifecycle import KillPod
from engine.api.node import Node
from engine.api.pod import Pod
from engine.cgroups.node_cgroups import NodeCgroups
from engine.containers.manager import ContainerGC
from engine.cri.client import RuntimeClient
from engine.cri.records import ContainerRecord
from engine.devices.manager import DeviceManager
from engine.devices.pod_resources import SOCKET_NAME as POD_RESOURCES_SOCKET
from engine.devices.registration import SOCKET_NAME as REGISTRATION_SOCKET
from engine.eviction.manager import EvictionManager
from engine.eviction.readings import NodeView
from engine.host.inotify import Watch
from engine.host.sockets import is_served
from engine.host.tasks import Tasks
from engine.images.manager import ImageManager
from engine.metrics import Registry
from engine.node.log_rotation import LogRotation
from engine.probes.manager import ProbeManager, ProbeResult

PLUGINS, POD_RESOURCES = "device-plugins", "pod-resources"


class Managed(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Rooms:
    """Image GC, container GC, eviction, devices, probes and admission of one node.

    `gone(uid)`: nothing of the pod is wanted any more; `over(uid)`: it has ended; `may_run(uid)`: something
    of it runs or will; `leaves(uid)`: it is being stopped and nobody wants it; `runs(uid, container)`: the
    runtime runs it; `running()`: all containers that it runs. `view` says what counts as the node for
    eviction, the whole machine by default.
    """

    def __init__(
        self,
        *,
        config: KubeletConfiguration,
        kubengine_config: KubengineConfiguration,
        runtime: RuntimeClient,
        cgroups: NodeCgroups,
        recorder: EventRecorder,
        registry: Registry,
        tasks: Tasks,
        root: Path,
        clock: Callable[[], float],
        active_pods: Callable[[], Sequence[Pod]],
        kill_pod: KillPod,
        gone: Callable[[str], bool],
        over: Callable[[str], bool],
        may_run: Callable[[str], bool],
        leaves: Callable[[str], bool],
        runs: Callable[[str, str], bool],
        running: Callable[[], Iterable[ContainerRecord]],
        sources_ready: Callable[[], bool],
        capacity_changed: Callable[[], None],
        conditions_changed: Callable[[], None],
        probed: Callable[[ProbeResult], None],
        view: NodeView | None = None,
    ) -> None:
        self.images = ImageManager(
            runtime=runtime,
            config=config,
            recorder=recorder,
            section=kubengine_config.images,
            registry=registry,
            tasks=tasks,
            active_pods=active_pods,
            state_dir=root,
            clock=clock,
        )
        self.containers = ContainerGC(
            runtime=runtime,
            recorder=recorder,
            section=kubengine_config.container_gc,
            tasks=tasks,
            content_removed=gone,
            runtime_removed=over,
            sources_ready=sources_ready,
            pod_logs_dir=Path(config.pod_logs_dir),
            clock=clock,
        )
        pods_cgroup = cgroups.root_path() if cgroups.enabled else None
        self.eviction = EvictionManager(
            config=config,
            recorder=recorder,
            active_pods=active_pods,
            kill_pod=kill_pod,
            pod_cgroup=cgroups.pod_path,
            section=kubengine_config.eviction,
            registry=registry,
            tasks=tasks,
            runtime=runtime,
            images=self.images,
            containers=self.containers,
            conditions_changed=conditions_changed,
            root_dir=root,
            view=view or NodeView(pods_cgroup=pods_cgroup),
            clock=clock,
        )
        self.devices = DeviceManager(
            config=config,
            section=kubengine_config.devices,
            active_pods=active_pods,
            registry=registry,
            tasks=tasks,
            sources_ready=sources_ready,
            may_run=may_run,
            leaves=leaves,
            is_running=runs,
            changed=capacity_changed,
            clock=clock,
            plugin_dir=root / PLUGINS,
            registry_dir=root / "plugins_registry",
            make_watch=Watch,
            pod_resources_dir=root / POD_RESOURCES,
        )
        self.probes = ProbeManager(
            section=kubengine_config.probes,
            recorder=recorder,
            registry=registry,
            clock=clock,
            on_result=probed,
            runtime_socket=runtime.socket,
        )
        self.admission = Admission(
            node=Node(),
            kill_pod=kill_pod,
            recorder=recorder,
            registry=registry,
            section=kubengine_config.preemption,
        )
        self._logs = LogRotation(config=config, runtime=runtime, running=running, clock=clock, tasks=tasks)
        self._before_pods: tuple[Managed, ...] = (self.devices, self.probes)
        self._beside_pods: tuple[Managed, ...] = (
            self.images,
            self.containers,
            self.eviction,
            self._logs,
        )

    def by_name(self) -> dict[str, object]:
        """What can be described and told something, by the name of its room."""
        return {
            "images": self.images,
            "containers": self.containers,
            "eviction": self.eviction,
            "devices": self.devices,
            "probes": self.probes,
            "admission": self.admission,
        }

    async def start_before_pods(self) -> None:
        """What pods need to be taken in."""
        for room in self._before_pods:
            await room.start()

    async def start_beside_pods(self) -> None:
        """What looks after pods that are there."""
        for room in self._beside_pods:
            await room.start()

    async def stop(self) -> None:
        """Every room is stopped even if one fails to."""
        await _each([room.stop for room in (*self._beside_pods, *self._before_pods)])


async def _each(calls: Sequence[Callable[[], Awaitable[None]]]) -> None:
    failure: Exception | None = None
    for call in calls:
        try:
            await call()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure


def refuse_served_sockets(root: Path) -> None:
    """Raises `Refused` if somebody, a kubelet perhaps, serves a socket that would be ours."""
    for path in (root / PLUGINS / REGISTRATION_SOCKET, root / POD_RESOURCES / POD_RESOURCES_SOCKET):
        try:
            served = is_served(path)
        except OSError as error:
            raise Refused(error.strerror or str(error), subject=str(path), errno=error.errno) from None
        if served:
            raise Refused("another process serves this socket", subject=str(path), errno=EADDRINUSE)
