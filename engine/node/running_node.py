"""Creates every part of a running node before any of them starts, and connects them.

Pods ask the managers, and the managers ask about pods. Therefore `__init__` creates all parts first, and
only what `start` begins calls back.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from engine.admission.sysctls import SysctlAllowlist, kernel_version, safe_sysctls
from engine.api.config import KubeletConfiguration
from engine.api.meta import ObjectMeta
from engine.api.node import NodeSpec
from engine.api.pod import Container, Pod, PodSpec
from engine.api.quantity import Quantity
from engine.cgroups.node_cgroups import NodeCgroups
from engine.cluster.certificates.serving import ServingCertificate
from engine.cri.client import RuntimeClient
from engine.cri.paths import pods_directory
from engine.devices.found_plugins import DEVICE_PLUGIN
from engine.dra.description import describe_claims
from engine.dra.driver_calls import DraDriver
from engine.dra.drivers import DRA_PLUGIN
from engine.dra.locator import ClaimLocator
from engine.dra.manager import ClaimManager
from engine.host.node_context import NodeContext
from engine.host.records.store import RecordStore
from engine.host.selinux import read_selinux
from engine.host.stopping import stop_all
from engine.node.controlplane.control_plane import Api, ControlPlane, NoControlPlane
from engine.node.decisions.endpoint import DecisionsEndpoint
from engine.node.decisions.keepers import decision_keepers
from engine.node.images.access import ImageAccess
from engine.node.images.docker_config import NodeCredentials
from engine.node.images.pull import ImagePuller
from engine.node.images.pull_records import PullRecords
from engine.node.managers import ManagerListeners, Managers
from engine.node.node_shutdown import shutdown_manager
from engine.node.nodeinfo import machine
from engine.node.nodeinfo.addresses import HostAddresses
from engine.node.nodeinfo.description import NodeDescription, NodeParts, NodeResources
from engine.node.nodeinfo.machine import runtime_of
from engine.node.nodeinfo.node_events import NodeEvents
from engine.node.nodeinfo.node_metrics import count_node, count_pods
from engine.node.nodeinfo.options import NodeOptions
from engine.node.nodeinfo.pod_cidr import PodCidr
from engine.node.pod.record_names import PodRecordNames, forget, take_over
from engine.node.pod.records import AcceptedSpecs, ReadinessRecords, TerminationRecords
from engine.node.pod_admission import HostSupport, PodAdmission, app_armor_enabled
from engine.node.pods import PodManager
from engine.node.podsapi import pods_server
from engine.node.runtime_view.runtime_health import RuntimeHealth
from engine.node.runtime_view.runtime_watch import RuntimeWatch
from engine.node.runtime_view.wait_until_available import wait_until_available
from engine.node.sources.static_sources import StaticSources
from engine.node.spec.subordinate_ids import subordinate_ids
from engine.node.spec.user_namespaces import UserNamespaceAllocator, ids_per_pod
from engine.node.sync.pod_metrics import PodMetrics
from engine.node.sync.probing import Probing
from engine.node.sync.services import (
    Allocations,
    PodRecords,
    RuntimeServices,
    Services,
    StartControl,
    VolumeServices,
)
from engine.node.volumes import PodVolumes, VolumeHost, VolumeManager
from engine.node.volumes.attachments import Attachments
from engine.node.volumes.csi_storage import CSI_PLUGIN, CsiStorage
from engine.node.volumes.intree_storage import InTreeStorage
from engine.node.volumes.local_devices import LocalDevices
from engine.plugins.watcher import PluginHandler, PluginWatcher
from engine.wire import cri_v1_pb2 as cri

if TYPE_CHECKING:  # imported when somebody asks for statistics, or for a container
    from engine.node.logs.container_access import ContainerAccess
    from engine.node.stats.sampler import UsageSampler
    from engine.node.stats.summary import Summaries
    from engine.node.stats.used import NodeUsage
    from engine.node.stats.volumes import VolumeFigures

PLUGINS_REGISTRY, RECORDS = "plugins_registry", "kubengine_records"
RECONCILE_SECONDS = 60.0


class RunningNode:
    """Run a node on a runtime that has answered and a cgroup tree that `start` creates, until `stop`."""

    def __init__(
        self,
        context: NodeContext,
        options: NodeOptions,
        serving: ServingCertificate,
        *,
        capacity: Mapping[str, Quantity],
        runtime: RuntimeClient,
        version: cri.VersionResponse,
        ips: Sequence[str],
        cgroups: NodeCgroups,
    ) -> None:
        self._context, self._options, self._serving = context, options, serving
        self._began = context.clock()
        self._runtime = runtime
        self._version = version
        self._cgroups = cgroups
        self._events = NodeEvents(context.recorder, context.name, context.root / "boot_id")
        self._reconciler = context.tasks.task("cgroup-reconcile")
        self._pod_cidr = PodCidr(runtime, context.tasks, context.config.pod_cidr)
        self._decision_keepers = decision_keepers(context, self._usage)
        self._addresses = HostAddresses(
            context.name,
            options.node_ips,
            ips,
            self._addresses_changed,
            external_cloud=options.external_cloud,
        )
        self._create_runtime_view()
        self.managers = self._create_managers()
        self._resources = NodeResources(capacity, cgroups, self.managers.devices)
        self._create_control_plane()
        self._create_volumes()
        self._create_pods()

    def _create_runtime_view(self) -> None:
        context = self._context
        self.watch = RuntimeWatch(
            self._runtime,
            on_change=self._runtime_changed,
            on_trouble=self._check_runtime,
            clock=context.steady,
            registry=context.registry,
            tasks=context.tasks,
        )
        count_node(context.registry, context.name, lambda: list(self.watch.pods.values()))
        self.runtime_health = RuntimeHealth(
            self._runtime,
            last_contact=self.watch.last_contact,
            on_change=self._conditions_changed,
            clock=context.steady,
            tasks=context.tasks,
        )

    def _create_managers(self) -> Managers:
        return Managers(
            self._context,
            runtime=self._runtime,
            cgroups=self._cgroups,
            watch=self.watch,
            pods=lambda: self.pods,
            view=self._options.view,
            notify=ManagerListeners(
                images_listed=self._images_listed,
                pull_image=self._pull_image,
                capacity_changed=self._capacity_changed,
                conditions_changed=self._conditions_changed,
            ),
        )

    def _create_control_plane(self) -> None:
        context, managers = self._context, self.managers
        self.attachments = Attachments(self._attachments_changed)
        self.description = NodeDescription(
            context,
            NodeParts(
                addresses=self._addresses,
                runtime=runtime_of(self._version.runtime_name, self._version.runtime_version),
                pressures=managers.eviction.conditions,
                problems=self._problems,
                images=managers.images.images,
                features=lambda: self.runtime_health.shown,
                volumes_in_use=lambda: self.attachments.in_use,
            ),
            self._resources,
            external_cloud=self._options.external_cloud,
        )
        self._control_plane = self._connect()
        self._locator = ClaimLocator(
            self._control_plane.objects, self._control_plane.slices, managers.devices.numa
        )
        managers.devices.add_provider(self._locator)
        self._admission = PodAdmission(
            managers,
            locator=self._locator,
            support=_host_support(context.config, self.runtime_health),
            node=self.description.judging,
            resources=self._resources,
            cgroups=self._cgroups,
            shutting_down=self._refuse_at_shutdown,
            registry=context.registry,
        )
        self._access = ImageAccess(
            context.config,
            records=PullRecords(context.root, context.clock),
            node=NodeCredentials(context.root, context.clock),
            programs=self._options.credential_programs,
            objects=self._control_plane.objects,
            recorder=context.recorder,
            registry=context.registry,
        )

    def _create_volumes(self) -> None:
        context, plane, managers = self._context, self._control_plane, self.managers
        section = context.kubengine_config.eviction
        self._volumes = PodVolumes(
            context.root,
            project_quotas=section.project_quotas,
            registry=context.registry,
            selinux=replace(read_selinux(), labels_shared_volumes=context.config.gate("SELinuxMount", False)),
        )
        self._records = RecordStore(
            context.root / RECORDS, context.tasks, names=PodRecordNames(pods_directory(context.root))
        )
        self._accepted = AcceptedSpecs(self._records)
        self._csi = CsiStorage(context, plane.objects, plane.drivers, self.attachments)
        self._claims = ClaimManager(
            context,
            claims=plane.objects,
            slices=plane.slices,
            connect=self._connect_driver,
            may_run=self._pod_may_run,
            ready=lambda: self.pods.known,
            changed=self._devices_changed,
        )
        self._claims.driver_connected = managers.pinning.cpus.driver_connected
        managers.devices.show_claims(self._claims.container_claims, self._described_claims)
        handlers: dict[str, PluginHandler] = {
            DEVICE_PLUGIN: managers.devices.found_plugins,
            CSI_PLUGIN: self._csi,
            DRA_PLUGIN: self._claims.drivers,
        }
        self._plugins = PluginWatcher(context.root / PLUGINS_REGISTRY, handlers, context.tasks)
        attaches = plane.api is not None and context.config.enable_controller_attach_detach
        self._volume_manager = VolumeManager(
            context,
            self._volumes,
            plane.objects,
            self._csi,
            LocalDevices(context.root, context.recorder),
            InTreeStorage(context.root, plane.objects, self.attachments if attaches else None, context.tasks),
            VolumeHost(lambda: self._addresses.ips, self.description.current, self._admission.allocatable),
        )

    def _create_pods(self) -> None:
        context, managers, volumes = self._context, self.managers, self._volumes
        self._probing = Probing(managers.probes, ReadinessRecords(self._records))
        lease = managers.images.lease
        self._puller = ImagePuller(
            self._runtime,
            context.config,
            context.recorder,
            context.steady,
            lease,
            self._access,
            context.registry,
        )
        self._users = UserNamespaceAllocator(pods_directory(context.root), ids_per_pod(context.config))
        services = Services(
            context=context,
            addresses=self._addresses,
            runtime=RuntimeServices(
                self._runtime,
                self.watch,
                self.runtime_health,
                self._version.runtime_name,
                self._version.runtime_version,
            ),
            images=self._puller,
            volumes=VolumeServices(volumes, self._volume_manager),
            records=PodRecords(
                self._accepted, TerminationRecords(self._records), partial(forget, self._records)
            ),
            admission=self._admission,
            probes=self._probing,
            allocations=Allocations(
                self._cgroups, managers.devices, self._claims, managers.pinning, self._users
            ),
            starts=StartControl.create(context.config, context.decisions),
            control_plane=self._control_plane,
            metrics=PodMetrics(context.registry),
        )
        self.pods = PodManager(services, self._admission)
        count_pods(context.registry, known=self.pods.all, active=self.pods.active)
        self._pods_api = pods_server(context, self.pods.all, services.listeners)
        self._shutdown = shutdown_manager(context, self._options.host, self.pods, self._conditions_changed)
        self._static = StaticSources(
            context,
            records=self.watch.pods.values,
            accepted=self._accepted,
            desired=self.pods.set_desired,
            mirrored=self._control_plane.manifests_changed,
        )

    def _connect(self) -> ControlPlane:
        """Create the control plane. The cluster code is imported only here: HTTP/2 and TLS cost memory."""
        if self._options.kubeconfig is None:
            return NoControlPlane(self._runtime_classes)
        from engine.node.controlplane.cluster_control_plane import ClusterControlPlane

        connected = ClusterControlPlane(
            self._options.kubeconfig,
            self._context,
            self._options,
            self._serving,
            self.description,
            self._node_changed,
        )
        self._context.recorder.listen(connected.send_event)
        return connected

    def _problems(self) -> list[str]:
        """Return the reasons for which the node is not ready."""
        shutdown = self._shutdown.problem() if self._shutdown is not None else ""
        return [*self.runtime_health.problems(), *filter(None, [self.watch.health(), shutdown])]

    def _refuse_at_shutdown(self) -> None:
        if self._shutdown is not None:
            self._shutdown.check_admission()

    # Life cycle

    async def start(self, serve: Callable[[], Awaitable[None]] | None) -> None:
        """Start all parts. If it raises, call `stop` to end the parts that have started."""
        await wait_until_available(self._open_records)
        self._records.start()
        await wait_until_available(self._take_over_records)
        self.managers.devices.claim()
        if self._pods_api is not None:
            self._pods_api.claim()
        if (ids := await subordinate_ids()) is not None:
            self._users.use_ids(ids, self._context.config.max_pods)
        for keeper in self._decision_keepers:
            await keeper.start()
        self._cgroups.start()
        self._pod_cidr.start()
        self._control_plane.start()
        await self.managers.start_before_pods()
        await self._volume_manager.start()
        await self._claims.start()
        await self._plugins.start()
        # Before any source: pods that run are counted before new ones are admitted.
        await wait_until_available(self.watch.start)
        await wait_until_available(self.runtime_health.start)
        await self._access.reconcile(self._runtime)
        self._events.started(machine.boot_id())
        if self._cgroups.enabled:
            self._events.enforced(self._cgroups.settings)
        self._conditions_changed()
        if self._shutdown is not None:
            await self._shutdown.start()
        if serve is not None:
            await serve()
        if self._pods_api is not None:
            await self._pods_api.start()
        await self._static.start()
        self._control_plane.follow_pods(self.pods)
        await self.managers.start_beside_pods()
        self._reconciler.start(self._reconcile_cgroups)

    async def _open_records(self) -> None:
        self._records.open()

    async def _take_over_records(self) -> None:
        await take_over(pods_directory(self._context.root), self._records)

    async def stop(self) -> None:
        """Stop, and leave pods running. Every part is stopped even if one fails; then the failures are
        raised.
        """
        # Sources first, so that no pod is added; the runtime's connection late, since managers use it to the
        # end.
        await stop_all(
            [
                self._stop_sources,
                *([self._pods_api.stop] if self._pods_api is not None else []),
                *([self._shutdown.stop] if self._shutdown is not None else []),
                self._reconciler.stop,
                self._pod_cidr.stop,
                self._plugins.stop,
                self._puller.stop,
                self.pods.stop,
                self._control_plane.stop,
                self._volume_manager.stop,
                self._claims.stop,
                self.runtime_health.stop,
                self.watch.stop,
                self.managers.stop,
                self._records.stop,
                self._release_cgroups,
                self._runtime.close,
                *(keeper.stop for keeper in self._decision_keepers),
            ]
        )

    async def _release_cgroups(self) -> None:
        self._cgroups.stop()

    async def remove_all_pods(self) -> None:
        """End every pod, remove its cgroups and files, and return when nothing is left."""
        await self._stop_sources()
        self._control_plane.stop_waiting_for_acknowledgements()
        await self.pods.remove_all()
        self._cgroups.remove_all(kill=True, wait=2.0)

    async def _stop_sources(self) -> None:
        await self._static.stop()
        await self._control_plane.unfollow_pods()

    async def _reconcile_cgroups(self) -> None:
        while True:
            await asyncio.sleep(RECONCILE_SECONDS)
            with self._reconciler.step(RECONCILE_SECONDS):
                self._cgroups.reconcile()
                self.pods.remove_leftovers()

    # Notifications between the parts

    def _connect_driver(self, name: str, socket: Path, service: str) -> DraDriver:
        from engine.dra.driver_client import DraDriverClient  # a node without drivers has no use for it

        return DraDriverClient(name, socket, service, self._context.registry)

    async def _pull_image(self, image: str) -> None:
        await self._puller.pull_for_node(image)

    def _runtime_changed(self, uid: str) -> None:
        self.pods.runtime_changed(uid)
        self.managers.pinning.containers_changed()

    def _check_runtime(self) -> None:
        self.runtime_health.check_now()

    def _conditions_changed(self) -> None:
        self._events.report_conditions(self.description.current().status.conditions or ())
        self._control_plane.conditions_changed()
        self.pods.something_changed()

    def _node_changed(self, metadata: ObjectMeta, spec: NodeSpec, status: Mapping[str, Any]) -> None:
        """Apply the API server's Node: its labels and taints, and its attached volumes."""
        judgement_changed = self.description.adopt(metadata, spec, status)
        self._pod_cidr.node_changed(spec.pod_cidrs or ())
        self.attachments.node_changed(status)
        self._addresses.node_changed(status)
        self._events.report_schedulable(unschedulable=spec.unschedulable)
        self.managers.admission.set_node(self.description.judging())
        if judgement_changed:
            self.pods.something_changed()

    def _addresses_changed(self) -> None:
        """Update the statuses of the pods, which show the node's addresses."""
        self._control_plane.conditions_changed()
        for pod in self.pods.all():
            self.pods.notify(pod.uid)

    def _capacity_changed(self) -> None:
        self._control_plane.conditions_changed()
        self.managers.admission.set_node(self.description.judging())
        self.pods.something_changed()
        for uid in self.managers.devices.state.pods:
            self.pods.notify(uid)

    def _described_claims(self) -> list[dict[str, Any]]:
        names = {pod.uid: pod.full_name for pod in self.pods.all()}
        claims = self._claims
        return describe_claims(claims.table, names, claims.device_health, self._locator.locations)

    def _pod_may_run(self, uid: str) -> bool:
        return self.pods.may_run(uid)

    def _devices_changed(self, uid: str) -> None:
        """Update the statuses of pods, which show the health of their claims' devices."""
        self.pods.notify(uid)

    async def _images_listed(self, present: Sequence[str], at: float) -> None:
        await self._access.images_listed(present, at)

    def _attachments_changed(self) -> None:
        self._control_plane.conditions_changed()

    def _runtime_classes(self) -> dict[str, str]:
        """Return the RuntimeClasses of a standalone node: those configured, and each handler under its own
        name.
        """
        handlers = self.runtime_health.features.handlers
        configured = self._context.kubengine_config.runtime_classes or {}
        return {**{name: name for name in handlers if name}, **configured}

    # What the server shows

    @property
    def api(self) -> Api | None:
        """Return the client of the cluster's API server; None on a standalone node."""
        return self._control_plane.api

    @cached_property
    def containers(self) -> ContainerAccess:
        """Return the access to the pods' containers."""
        from engine.node.logs.container_access import ContainerAccess

        return ContainerAccess(
            self._runtime,
            pods=self.pods.all,
            held=self.watch.pod,
            pod_logs=Path(self._context.config.pod_logs_dir),
            checkpoints=self._context.root / "checkpoints",
        )

    def components(self) -> dict[str, object]:
        """Return the components that describe themselves and take actions, by name."""
        return {
            **self.managers.by_component(),
            "cgroups": self._cgroups,
            "decisions": DecisionsEndpoint(self._context.decisions),
            "node": self.description,
        }

    def running_pods(self) -> list[Pod]:
        """Return the pods that the runtime runs, including unknown ones."""
        return [
            Pod(
                metadata=ObjectMeta(name=record.name, namespace=record.namespace, uid=record.uid),
                spec=PodSpec(
                    containers=[Container(name=c.name, image=c.image) for c in record.containers if c.running]
                ),
            )
            for record in self.watch.pods.values()
            if record.may_run
        ]

    def healthz(self) -> list[tuple[str, str | None]]:
        """Return each part that can fail, with its problem, or None if it is healthy."""
        tasks = self._context.tasks.health()
        failing = "; ".join(f"{name}: {trouble}" for name, trouble in tasks if trouble)
        return [
            ("ping", None),
            ("log", None),
            ("syncloop", failing or None),
            ("runtime", self.watch.health() or None),
            *tasks,
        ]

    @cached_property
    def sampler(self) -> UsageSampler:
        """Return the reader of usage from cgroups and network devices."""
        from engine.node.stats.sampler import UsageSampler

        return UsageSampler(
            pods=lambda: list(self.watch.pods.values()),
            pod_cgroup=self._cgroups.pod_path,
            pods_root=self._cgroups.root_path,
            runtime=self._runtime.socket,
            clock=self._context.clock,
        )

    @cached_property
    def volume_figures(self) -> VolumeFigures:
        """Return the usage of volumes."""
        from engine.node.stats.volumes import VolumeFigures

        context = self._context
        return VolumeFigures(self._volume_manager.mounted_volumes, self._csi, context.recorder, context.clock)

    @cached_property
    def summaries(self) -> Summaries:
        """Return the kubelet's summaries of usage."""
        from engine.node.stats.summary import Summaries

        return Summaries(
            self._context,
            began=self._began,
            runtime=self._runtime,
            sampler=self.sampler,
            volumes=self.volume_figures,
            held=lambda: list(self.watch.pods.values()),
            known=self.pods.get,
        )

    async def _usage(self) -> NodeUsage:
        return await self.sampler.sample()


def _host_support(config: KubeletConfiguration, runtime_health: RuntimeHealth) -> HostSupport:
    safe = safe_sysctls(kernel_version(os.uname().release))
    return HostSupport(
        sysctls=SysctlAllowlist(safe, config.allowed_unsafe_sysctls or ()),
        app_armor=app_armor_enabled(),
        features=lambda: runtime_health.features,
    )
