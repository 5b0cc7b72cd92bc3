"""A node's place in a cluster: its Node object, its lease, its events and its pods, kept at an API server.

Beside the node, never in its way: pods run on while the server is away.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine.api.events import Event
from engine.api.pod import Pod
from engine.api.token_bucket import api_rate
from engine.api.version import engine_version
from engine.cluster.certificates.metrics import CertificateMetrics
from engine.cluster.certificates.node_identity import NodeIdentity
from engine.cluster.certificates.openssl import new_key
from engine.cluster.certificates.request import (
    Wanted,
    request_certificate,
    serving_certificate,
    serving_names,
)
from engine.cluster.certificates.rotation import CertificateRotation
from engine.cluster.client import ApiClient
from engine.cluster.csi_node import CsiNodeKeeper
from engine.cluster.event_writer import EventWriter
from engine.cluster.lease import LeaseKeeper
from engine.cluster.node_status_manager import NodeStatusManager
from engine.csi.records import DriverRecords
from engine.host.tasks import Work
from engine.node.controlplane.cluster_objects import ClusterObjects
from engine.node.controlplane.control_plane import NodeHeard
from engine.node.controlplane.pod_references import PodReferences
from engine.node.nodeinfo.context import NodeContext
from engine.node.nodeinfo.description import NodeDescription
from engine.node.sources.api_pods import ApiPods
from engine.node.sources.pod_sink import API, MANIFESTS, PodSink

HEARTBEAT_SECONDS: Final = 10.0
"""A call's deadline, so that a lease of 40 s outlives a server that hangs (kubelet v1.36)."""


class ClusterControlPlane:
    """One API server and user, from a kubeconfig. `start` returns at once; what fails is tried again."""

    sources: Sequence[str] = (MANIFESTS, API)

    def __init__(
        self,
        kubeconfig: Path,
        setting: NodeContext,
        description: NodeDescription,
        node_changed: NodeHeard,
    ) -> None:
        """Raises InvalidInput, naming the file, for a kubeconfig that cannot be used."""
        name, config, clock, tasks = setting.name, setting.config, setting.clock, setting.tasks
        chance, user_agent = random.Random(), f"kubengine/{engine_version()}"
        self._identity = NodeIdentity(
            kubeconfig,
            setting.bootstrap_kubeconfig,
            setting.cert_dir,
            name,
            user_agent=user_agent,
            rotate=config.rotate_certificates,
            clock=clock,
            chance=chance,
            registry=setting.registry,
        )
        self._client = ApiClient(
            self._identity.config,
            self._identity.credentials,
            user_agent=user_agent,
            timeout=HEARTBEAT_SECONDS,
            registry=setting.registry,
            rate=api_rate(config.kube_api_qps, config.kube_api_burst),
        )
        self._node = NodeStatusManager(
            self._client,
            name,
            describe=description.complete,
            changed=node_changed,
            register=config.register_node,
            controller_attaches=config.enable_controller_attach_detach,
            update_seconds=config.node_status_update_frequency,
            report_seconds=config.node_status_report_frequency,
            clock=clock,
            chance=chance,
        )
        self._lease = LeaseKeeper(
            self._client,
            name,
            node_uid=lambda: self._node.uid,
            seconds=config.node_lease_duration_seconds,
            clock=clock,
            lost=self._node.lost,
        )
        self._events = EventWriter(self._client, name, api_rate(config.event_record_qps, config.event_burst))
        self._references = PodReferences(self._client, tasks, clock)
        self.objects: ClusterObjects = self._references
        drivers = CsiNodeKeeper(
            self._client, name, node_uid=lambda: self._node.uid, registered=self._node.registered
        )
        self.drivers: DriverRecords = drivers
        self._pods = ApiPods(self._client, name, node_uid=lambda: self._node.uid, clock=clock)
        self._follow = tasks.task("cluster-pods")
        self._credentials = tasks.task("node-credentials")
        self._tasks = [
            (tasks.task("node-status"), self._node.run),
            (tasks.task("node-watch"), self._node.follow),
            (tasks.task("node-lease"), self._lease.run),
            (tasks.task("cluster-events"), self._events.run),
            (tasks.task("cluster-services"), self._references.run),
            (tasks.task("csi-node"), drivers.run),
        ]
        self._serving: CertificateRotation | None = None
        if config.enable_server and config.server_tls_bootstrap:
            self._serving = self._serving_rotation(setting, description)
            self._tasks.append((tasks.task("serving-certificate"), self._serving.run))

    def _serving_rotation(self, setting: NodeContext, description: NodeDescription) -> CertificateRotation:
        def wanted() -> Wanted | None:
            names = serving_names(description.current().status.addresses or ())
            return serving_certificate(setting.name, names) if names else None

        async def sign(wanted: Wanted) -> tuple[bytes, bytes]:
            key = await new_key()
            return await request_certificate(self._client, wanted, key), key

        return CertificateRotation(
            setting.serving.store,
            wanted=wanted,
            sign=sign,
            metrics=CertificateMetrics(setting.registry, "server", setting.clock),
            clock=setting.clock,
            chance=random.Random(),
        )

    @property
    def api(self) -> ApiClient:
        return self._client

    def start(self) -> None:
        self._credentials.start(lambda: self._identity.run(self._client))
        for task, work in self._tasks:
            task.start(self._once_known(work))

    def _once_known(self, work: Work) -> Work:
        """Nobody asks the API server before the node is somebody there."""

        async def begun() -> None:
            await self._identity.ready.wait()
            await work()

        return begun

    def follow_pods(self, pods: PodSink) -> None:
        """The API's pods come to the node from now on, and their status goes back."""
        self._pods.serve(pods)
        self._follow.start(self._once_known(self._follow_pods))

    async def _follow_pods(self) -> None:
        """By the labels and taints of the server's Node pods are judged: it comes first."""
        await self._node.seen.wait()
        await self._pods.run()

    async def unfollow_pods(self) -> None:
        """What the API says of pods is heard no more."""
        await self._follow.stop()

    def stop_waiting(self) -> None:
        self._pods.leave()

    async def stop(self) -> None:
        await self.unfollow_pods()
        await self._pods.stop()
        await self._references.stop()
        for task, _ in self._tasks:
            await task.stop()
        await self._credentials.stop()
        self._client.close()

    def tell(self, event: Event) -> None:
        """An event for the API server."""
        self._events.take(event)

    def manifests_changed(self, pods: Sequence[Pod]) -> None:
        """The pods that manifests want here, which the API shows as mirrors."""
        self._pods.manifests_changed(pods)

    def pod_changed(self, pod: Pod, *, may_run: bool) -> None:
        """A pod's status is another one; `may_run`: something of it runs, or will."""
        self._pods.pod_changed(pod, may_run=may_run)

    async def end_known(self, pod: Pod) -> None:
        """Returns when the server has the last status of a pod that has nothing of the node any more."""
        await self._pods.end_known(pod)

    def conditions_changed(self) -> None:
        """The node's status is looked at now, not in its time."""
        self._node.soon()
        if self._serving is not None:
            self._serving.look()
