"""Connects the node to an API server: its Node object, lease, events and pods.

Pods keep running while the server is unreachable.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
from engine.cluster.certificates.rotation import CertificateRotation, RotationTiming
from engine.cluster.certificates.serving import ServingCertificate
from engine.cluster.client import ApiClient
from engine.cluster.csi_limits import CsiLimits
from engine.cluster.csi_node import CsiNodeManager
from engine.cluster.event_writer import EventWriter
from engine.cluster.lease import LeaseController
from engine.cluster.node_status_manager import NodeStatusManager
from engine.cluster.resource_slices import ResourceSlices
from engine.csi.records import DriverRecords
from engine.host.node_context import NodeContext
from engine.host.tasks import BackgroundTask, Work
from engine.node.controlplane.control_plane import ClusterObjects, NodeHeard, NodeSlices
from engine.node.controlplane.pod_references import PodReferences
from engine.node.nodeinfo.description import NodeDescription
from engine.node.nodeinfo.options import CERTIFICATES, NodeOptions
from engine.node.sources.api_pods import ApiPods
from engine.node.sources.pod_sink import API, MANIFESTS, PodSink

if TYPE_CHECKING:
    from engine.cluster.certificates.pod_certificates import PodCertificates


class ClusterControlPlane:
    """Connect to the API server of a kubeconfig. `start` returns at once; failures are retried."""

    sources: Sequence[str] = (MANIFESTS, API)

    def __init__(
        self,
        kubeconfig: Path,
        context: NodeContext,
        options: NodeOptions,
        serving: ServingCertificate,
        description: NodeDescription,
        node_changed: NodeHeard,
    ) -> None:
        """Read the kubeconfig. Raises InvalidInput naming the file if it cannot be used."""
        name, clock, tasks = context.name, context.clock, context.tasks
        self._context, self._chance = context, random.Random()
        self._client = self._connect(kubeconfig, options)
        self._node = NodeStatusManager(
            context,
            self._client,
            describe=description.complete,
            changed=node_changed,
            chance=self._chance,
            external_cloud=options.external_cloud,
        )
        self._references = PodReferences(self._client, tasks, context.steady, self._pod_certificates())
        self.objects: ClusterObjects = self._references
        self._csi_limits = CsiLimits(self._client, tasks)
        drivers = self._csi_node()
        self.drivers: DriverRecords = drivers
        self.slices: NodeSlices = ResourceSlices(self._client, name, self._node.registered)
        self._pods = ApiPods(self._client, name, node_uid=self._node_uid, clock=clock)
        self._follow = tasks.task("cluster-pods")
        self._credentials = tasks.task("node-credentials")
        self._tasks = self._reports()
        self._tasks += [
            (tasks.task("cluster-services"), self._references.run),
            (tasks.task("csi-node"), drivers.run),
        ]
        self._serving: CertificateRotation | None = None
        if context.config.enable_server and context.config.server_tls_bootstrap:
            self._serving = self._serving_rotation(serving, description)
            self._tasks.append((tasks.task("serving-certificate"), self._serving.run))

    def _connect(self, kubeconfig: Path, options: NodeOptions) -> ApiClient:
        """Create the client, and the identity that provides its credentials."""
        context, config = self._context, self._context.config
        user_agent = f"kubengine/{engine_version()}"
        self._identity = NodeIdentity(
            context,
            kubeconfig,
            options.bootstrap_kubeconfig,
            options.cert_dir or context.root / CERTIFICATES,
            user_agent=user_agent,
            chance=self._chance,
        )
        return ApiClient(
            self._identity.config,
            self._identity.credentials,
            user_agent=user_agent,
            registry=context.registry,
            rate=api_rate(config.kube_api_qps, config.kube_api_burst),
        )

    def _pod_certificates(self) -> PodCertificates | None:
        if not self._context.config.gate("PodCertificateRequest", False):
            return None
        # Imported here because the gate is off by default.
        from engine.cluster.certificates.pod_certificates import PodCertificates

        return PodCertificates(self._context, self._client, self._node_uid)

    def _csi_node(self) -> CsiNodeManager:
        return CsiNodeManager(
            self._client,
            self._context.name,
            node_uid=self._node_uid,
            registered=self._node.registered,
            limits=self._csi_limits,
        )

    def _reports(self) -> list[tuple[BackgroundTask, Work]]:
        """Create what tells the server about the node: its status, lease and events."""
        context, config, tasks = self._context, self._context.config, self._context.tasks
        lease = LeaseController(
            self._client,
            context.name,
            node_uid=self._node_uid,
            seconds=config.node_lease_duration_seconds,
            clock=context.clock,
            lost=self._node.lost,
        )
        self._events = EventWriter(
            self._client, context.name, api_rate(config.event_record_qps, config.event_burst)
        )
        return [
            (tasks.task("node-status"), self._node.run),
            (tasks.task("node-watch"), self._node.follow),
            (tasks.task("node-lease"), lease.run),
            (tasks.task("cluster-events"), self._events.run),
        ]

    def _node_uid(self) -> str:
        return self._node.uid

    def _serving_rotation(
        self, serving: ServingCertificate, description: NodeDescription
    ) -> CertificateRotation:
        context = self._context

        def wanted() -> Wanted | None:
            names = serving_names(description.current().status.addresses or ())
            # A certificate without names is useless, and would be replaced as soon as the addresses are
            # known.
            return serving_certificate(context.name, names) if names else None

        async def sign(wanted: Wanted) -> tuple[bytes, bytes]:
            key = await new_key()
            return await request_certificate(self._client, wanted, key), key

        return CertificateRotation(
            serving.store,
            wanted=wanted,
            sign=sign,
            metrics=CertificateMetrics(context.registry, "server", context.clock),
            timing=RotationTiming(context.clock, self._chance),
        )

    @property
    def api(self) -> ApiClient:
        return self._client

    def start(self) -> None:
        # Not one of `_tasks`, which all wait for the identity that this task obtains.
        self._credentials.start(lambda: self._identity.run(self._client))
        for task, work in self._tasks:
            task.start(self._once_known(work))

    def _once_known(self, work: Work) -> Work:
        """Return work that first waits for the node's identity, which every call needs."""

        async def begun() -> None:
            await self._identity.ready.wait()
            await work()

        return begun

    def follow_pods(self, pods: PodSink) -> None:
        """Start following the pods of the API, and reporting their status."""
        self._pods.serve(pods)
        self._follow.start(self._once_known(self._follow_pods))

    async def _follow_pods(self) -> None:
        """Follow the pods after the Node object has been read, because its labels and taints affect
        admission.
        """
        await self._node.seen.wait()
        await self._pods.run()

    async def unfollow_pods(self) -> None:
        """Stop following the pods of the API."""
        await self._follow.stop()

    def stop_waiting_for_acknowledgements(self) -> None:
        self._pods.stop_waiting_for_acknowledgements()

    async def stop(self) -> None:
        await self.unfollow_pods()
        await self._pods.stop()
        await self._references.stop()
        await self._csi_limits.stop()
        for task, _ in self._tasks:
            await task.stop()
        await self._credentials.stop()
        # Closed last, because the parts above may send a final report when they stop.
        self._client.close()

    def send_event(self, event: Event) -> None:
        """Send an event to the API server."""
        self._events.add(event)

    def manifests_changed(self, pods: Sequence[Pod]) -> None:
        """Set the static pods, which mirror pods represent in the API."""
        self._pods.manifests_changed(pods)

    def pod_changed(self, pod: Pod, *, may_run: bool) -> None:
        """Report a pod's changed status; `may_run` is false once none of its containers runs or will run."""
        self._pods.pod_changed(pod, may_run=may_run)

    async def wait_final_status(self, pod: Pod) -> None:
        """Wait until the server has the final status of a pod that uses no resources of the node."""
        await self._pods.wait_final_status(pod)

    def conditions_changed(self) -> None:
        """Update the node's status now instead of at the next period."""
        self._node.soon()
        if self._serving is not None:
            self._serving.check()
