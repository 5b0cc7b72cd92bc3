"""The façade: one node, its rooms put together."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.admission.sysctls import SysctlAllowlist, kernel_version, safe_sysctls
from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.api.events import WARNING, EventRecorder
from engine.api.kubengine_config import KubengineConfiguration
from engine.api.lifecycle import PodEnd
from engine.api.meta import ObjectMeta
from engine.api.node import Node as NodeObject
from engine.api.pod import Container, Pod, PodSpec
from engine.api.quantity import Quantity
from engine.cgroups.disabled import NoCgroups
from engine.cgroups.manager import CgroupManager
from engine.cgroups.node_cgroups import NodeCgroups
from engine.cri.client import RuntimeClient
from engine.cri.records import PodRecord
from engine.eviction.readings import NodeView
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.node import machine
from engine.node.backoff import Backoff
from engine.node.description import NodeDescription
from engine.node.gatekeeper import Gatekeeper
from engine.node.host_support import HostSupport, app_armor_enabled
from engine.node.image_pull import ImagePuller
from engine.node.node_events import NodeEvents
from engine.node.node_resources import NodeResources
from engine.node.pod.kept_end import KeptEnds
from engine.node.pod_stats import pod_stats
from engine.node.pods import NodePods
from engine.node.probing import Probing
from engine.node.rooms import Rooms, refuse_served_sockets
from engine.node.runtime_health import RuntimeHealth
from engine.node.runtime_watch import RuntimeWatch
from engine.node.services import Services
from engine.node.sources import ManifestDirectory
from engine.node.static_uids import StaticUids
from engine.node.summary import node_summary, pod_summary
from engine.node.user_namespaces import IDS_PER_POD, UserNamespaces
from engine.node.volumes import PodVolumes
from engine.probes.manager import ProbeResult

if TYPE_CHECKING:
    from engine.node.membership import Membership

log = logging.getLogger("kubengine.node")

RUNTIME_WAIT_SECONDS = 30.0
STARTS_AT_ONCE = 8
RECONCILE_SECONDS = 60.0


class Node:
    """A node agent: pods from a manifest directory, run by a CRI runtime.

    `start` raises what stops a node from working: `Unavailable` without a runtime, `Refused` when the
    cgroup tree can't be made or another agent holds the root directory. With a `kubeconfig` the node is
    registered at its API server and keeps its lease, status and events there. `stop` leaves pods running;
    `remove_all_pods` before it ends them.
    """

    def __init__(
        self,
        *,
        config: KubeletConfiguration,
        kubengine_config: KubengineConfiguration | None = None,
        runtime_endpoint: str,
        root: Path,
        name: str | None = None,
        clock: Callable[[], float] = time.time,
        view: NodeView | None = None,
        kubeconfig: Path | None = None,
    ) -> None:
        self.config = config
        self.kubengine_config = kubengine_config or KubengineConfiguration()
        self.name = name or socket.gethostname().lower()
        self.root = root
        self.registry = Registry()
        self.tasks = Tasks(self.registry)
        self.recorder = EventRecorder(clock)
        self.rooms: dict[str, object] = {}
        self._clock = clock
        self._view = view
        self._kubeconfig = kubeconfig
        self._membership: Membership | None = None
        self._began = clock()
        self._endpoint = runtime_endpoint
        self._lock: int | None = None
        self._services: Services | None = None
        self._watch: RuntimeWatch | None = None
        self._health: RuntimeHealth | None = None
        self._events = NodeEvents(self.recorder, self.name, root / "boot_id")
        self._description: NodeDescription | None = None
        self._probing: Probing | None = None
        self._gatekeeper: Gatekeeper | None = None
        self._pods: NodePods | None = None
        self._uids: StaticUids | None = None
        self._source: ManifestDirectory | None = None
        self._reconciler = self.tasks.task("cgroup-reconcile")
        self._rooms: Rooms | None = None

    # Life

    def claim(self) -> None:
        """Make sure that the node is nobody else's, before anything of it is touched.

        Raises `Refused` where another agent holds the root directory or a kubelet serves its sockets.
        `start` does it too, if it was not done before.
        """
        if self._lock is None:
            self._take_root()
            refuse_served_sockets(self.root)

    async def start(self) -> None:
        self.claim()
        sysctls = SysctlAllowlist(
            safe_sysctls(kernel_version(os.uname().release)), self.config.allowed_unsafe_sysctls or ()
        )
        capacity = machine.capacity(self.root, self.config.max_pods)
        runtime = RuntimeClient(
            self._endpoint, timeout=self.config.runtime_request_timeout, registry=self.registry
        )
        runtime_name = await self._wait_for_runtime(runtime)
        cgroups = self._make_cgroups(capacity)
        cgroups.start()
        self._watch = watch = RuntimeWatch(
            runtime,
            on_change=self._runtime_changed,
            on_trouble=self._runtime_doubted,
            clock=self._clock,
            registry=self.registry,
            tasks=self.tasks,
        )
        self._health = health = RuntimeHealth(
            runtime,
            last_contact=watch.last_contact,
            on_change=self._conditions_changed,
            clock=self._clock,
            tasks=self.tasks,
        )
        self._rooms = rooms = self._make_rooms(runtime, cgroups, watch)
        resources = NodeResources(capacity, cgroups, rooms.devices)
        host_ip = machine.host_ip()
        self._description = NodeDescription(
            name=self.name,
            config=self.config,
            labels=self.kubengine_config.node_labels or {},
            resources=resources,
            host_ip=host_ip,
            runtime_name=runtime_name,
            clock=self._clock,
            pressures=rooms.eviction.conditions,
            problems=lambda: [*health.problems(), *filter(None, [watch.health()])],
            images=rooms.images.images,
        )
        if self._kubeconfig is not None:
            self._join(self._kubeconfig)
        volumes = PodVolumes(self.root)
        self._probing = probing = Probing(rooms.probes, volumes.pod_directory)
        self._uids = StaticUids(watch.pods.values, volumes.pod_directory)
        self._gatekeeper = gatekeeper = Gatekeeper(
            eviction=rooms.eviction,
            devices=rooms.devices,
            admission=rooms.admission,
            support=HostSupport(
                sysctls=sysctls, app_armor=app_armor_enabled(), features=lambda: health.features
            ),
            node=self.node_object,
        )
        self._services = Services(
            config=self.config,
            node_name=self.name,
            host_ip=host_ip,
            root=self.root,
            clock=self._clock,
            runtime=runtime,
            runtime_name=runtime_name,
            watch=watch,
            volumes=volumes,
            cgroups=cgroups,
            images=ImagePuller(runtime, self.config, self.recorder, self._clock),
            recorder=self.recorder,
            tasks=self.tasks,
            backoff=self._restart_backoff(),
            starting=asyncio.Semaphore(STARTS_AT_ONCE),
            users=UserNamespaces(self.root / "pods", self._ids_per_pod()),
            features=lambda: health.features,
            allocatable=resources.allocatable,
            used_beside=gatekeeper.used_beside,
            health=probing.health,
            ready=probing.ready,
            devices=rooms.devices.container_config,
            lease=rooms.images.lease,
            observed=self._observed,
            ends=KeptEnds(volumes.pod_directory),
            ending=probing.ending,
            leaves=gatekeeper.leaves,
            released=self._released,
            pod_changed=probing.remember,
            pod_resized=gatekeeper.resized,
        )
        self._pods = NodePods(self._services, gatekeeper, accepted=self._accepted)
        self.rooms.update(rooms.by_name(), cgroups=cgroups, node=self._description)
        await rooms.start_before_pods()
        await watch.start()
        await health.start()
        self._events.started(machine.boot_id())
        self._conditions_changed()
        await self._start_source()
        await rooms.start_beside_pods()
        self._reconciler.start(self._reconcile_cgroups)

    def _make_rooms(self, runtime: RuntimeClient, cgroups: NodeCgroups, watch: RuntimeWatch) -> Rooms:
        def runs(uid: str, container: str) -> bool:
            newest = watch.pod(uid).container(container)
            return newest is not None and newest.running

        return Rooms(
            config=self.config,
            kubengine_config=self.kubengine_config,
            runtime=runtime,
            cgroups=cgroups,
            recorder=self.recorder,
            registry=self.registry,
            tasks=self.tasks,
            root=self.root,
            clock=self._clock,
            active_pods=self.active_pods,
            kill_pod=self.kill_pod,
            gone=lambda uid: self._pods is not None and self._pods.is_gone(uid),
            over=lambda uid: self._pods is not None and self._pods.is_over(uid),
            may_run=lambda uid: self._pods is None or self._pods.may_run(uid),
            leaves=lambda uid: self._pods is not None and self._pods.leaves(uid),
            runs=runs,
            running=lambda: [c for record in watch.pods.values() for c in record.running],
            sources_ready=self._sources_ready,
            capacity_changed=self._capacity_changed,
            conditions_changed=self._conditions_changed,
            probed=self._probed,
            view=self._view,
        )

    def _join(self, kubeconfig: Path) -> None:
        """Take part in a cluster. Loaded only for it: HTTP/2 and TLS cost a standalone node nothing."""
        from engine.node.membership import Membership

        assert self._description is not None
        self._membership = Membership(
            kubeconfig,
            name=self.name,
            config=self.config,
            description=self._description,
            tasks=self.tasks,
            clock=self._clock,
        )
        self.recorder.listen(self._membership.tell)
        self._membership.start()

    async def stop(self) -> None:
        """Leaves pods as they are."""
        if self._membership is not None:
            await self._membership.stop()
        if self._source is not None:
            await self._source.stop()
        await self._reconciler.stop()
        if self._pods is not None:
            await self._pods.stop()
        if self._health is not None:
            await self._health.stop()
        if self._watch is not None:
            await self._watch.stop()
        if self._rooms is not None:
            await self._rooms.stop()
        if self._services is not None:
            self._services.cgroups.stop()
            await self._services.runtime.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def remove_all_pods(self) -> None:
        """Ends every pod, takes away its cgroups and files, and returns when nothing is left."""
        if self._source is not None:
            await self._source.stop()
            self._source = None
        if self._pods is not None and self._services is not None:
            await self._pods.remove_all()
            self._services.cgroups.remove_all(kill=True, wait=2.0)

    async def kill_pod(self, pod: Pod, end: PodEnd) -> None:
        """`engine.api.lifecycle.KillPod`: ends a pod for good."""
        assert self._pods is not None
        await self._pods.kill(pod, end)

    def _take_root(self) -> None:
        """One agent per root directory."""
        try:
            self.root.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._lock = os.open(self.root / "kubengine.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            text = error.strerror or str(error)
            raise Refused(text, subject=error.filename or str(self.root), errno=error.errno) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("another agent is running on this directory", subject=str(self.root)) from None

    async def _wait_for_runtime(self, runtime: RuntimeClient) -> str:
        """The runtime's name, once it answers."""
        deadline = self._clock() + RUNTIME_WAIT_SECONDS
        said = False
        while True:
            try:
                return (await runtime.version()).runtime_name
            except Unavailable as error:
                if self._clock() > deadline:
                    raise
                if not said:
                    log.warning("%s; waiting for it up to %g s", error, RUNTIME_WAIT_SECONDS)
                said = True
                await asyncio.sleep(0.2)

    def _make_cgroups(self, capacity: Mapping[str, Quantity]) -> NodeCgroups:
        section = self.kubengine_config.cgroups
        if not self.config.cgroups_per_qos:
            return NoCgroups(config=self.config, capacity=capacity)
        amounts: dict[str, Quantity | int] = {**capacity, machine.PIDS: machine.max_pids()}
        return CgroupManager(config=self.config, section=section, capacity=amounts, registry=self.registry)

    def _ids_per_pod(self) -> int:
        settings = self.config.user_namespaces
        return IDS_PER_POD if settings is None else settings.ids_per_pod or IDS_PER_POD

    def _restart_backoff(self) -> Backoff:
        settings = self.config.crash_loop_back_off
        if settings is not None and settings.max_container_restart_period is not None:
            return Backoff(most=float(settings.max_container_restart_period))
        return Backoff()

    async def _start_source(self) -> None:
        assert self._pods is not None
        assert self._uids is not None
        if not self.config.static_pod_path:
            self._pods.set_desired([])
            return
        self._source = ManifestDirectory(
            Path(self.config.static_pod_path),
            node_name=self.name,
            period=self.config.file_check_frequency,
            clock=self._clock,
            uids=self._uids,
            on_change=self._pods.set_desired,
            on_fault=self._manifest_fault,
            tasks=self.tasks,
        )
        await self._source.start()
        await self._source.ready.wait()

    def _sources_ready(self) -> bool:
        return self._pods is not None and self._pods.known

    def _manifest_fault(self, error: InvalidInput) -> None:
        self.recorder.node(WARNING, "FailedManifest", str(error))

    async def _reconcile_cgroups(self) -> None:
        while True:
            await asyncio.sleep(RECONCILE_SECONDS)
            assert self._services is not None
            with self._reconciler.step(RECONCILE_SECONDS):
                self._services.cgroups.reconcile()

    # What rooms and workers tell

    def _runtime_changed(self, uid: str) -> None:
        if self._pods is not None:
            self._pods.runtime_changed(uid)

    def _probed(self, result: ProbeResult) -> None:
        if self._pods is not None:
            self._pods.notify(result.pod_uid)

    def _runtime_doubted(self) -> None:
        if self._health is not None:
            self._health.doubt()

    def _conditions_changed(self) -> None:
        if self._description is not None:
            self._events.look(self._description.current().status.conditions or ())
        if self._membership is not None:
            self._membership.conditions_changed()
        self._something_changed()

    def _capacity_changed(self) -> None:
        if self._rooms is not None and self._services is not None:
            self._rooms.admission.set_node(self.node_object())
            self._something_changed()

    def _something_changed(self) -> None:
        if self._pods is not None:
            self._pods.something_changed()

    def _observed(self, pod: Pod, record: PodRecord) -> None:
        assert self._gatekeeper is not None
        assert self._probing is not None
        self._probing.observed(pod, record)
        if all((c := record.container(name)) is not None and c.running for name in _app_names(pod)):
            self._gatekeeper.apps_run(pod)

    def _accepted(self, pod: Pod) -> None:
        assert self._probing is not None
        assert self._uids is not None
        self._uids.remember(pod)
        self._probing.accepted(pod)

    def _released(self, pod: Pod) -> None:
        assert self._gatekeeper is not None
        assert self._probing is not None
        self._gatekeeper.released(pod)
        self._probing.released(pod.uid)

    # What the server shows

    def node_object(self) -> NodeObject:
        """The node with its capacity, allocatable and conditions of this moment."""
        assert self._description is not None
        return self._description.current()

    def active_pods(self) -> list[Pod]:
        """Pods that hold, or will hold, resources of the node."""
        return self._pods.active() if self._pods is not None else []

    def pods(self) -> list[Pod]:
        return self._pods.all() if self._pods is not None else []

    async def running_pods(self) -> list[Pod]:
        assert self._services is not None
        return [
            Pod(
                metadata=ObjectMeta(name=record.name, namespace=record.namespace, uid=record.uid),
                spec=PodSpec(
                    containers=[Container(name=c.name, image=c.image) for c in record.containers if c.running]
                ),
            )
            for record in self._services.watch.pods.values()
            if record.running
        ]

    def healthz(self) -> list[tuple[str, str | None]]:
        assert self._services is not None
        return [
            ("ping", None),
            ("runtime", self._services.watch.health() or None),
            *self.tasks.health(),
        ]

    async def stats_summary(self) -> dict[str, Any]:
        """What the node and its pods use, as the kubelet's Summary."""
        assert self._services is not None
        stats = await pod_stats(self._services.runtime, list(self._services.watch.pods.values()))
        return {
            "node": node_summary(self.name, self.root, self._began, self._clock()),
            "pods": [pod_summary(pod) for pod in stats],
        }


def _app_names(pod: Pod) -> list[str]:
    return [container.name for container in pod.spec.containers]
