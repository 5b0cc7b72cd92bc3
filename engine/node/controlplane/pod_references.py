"""Fetches the objects that pods refer to from the API server; implements `control_plane.ClusterObjects`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from engine.api.errors import InvalidInput, NotFound, Unavailable
from engine.api.objects.cluster_objects import (
    ClusterTrustBundle,
    ConfigMap,
    RuntimeClass,
    Secret,
    Service,
    ServiceAccount,
)
from engine.api.objects.dynamic_resources import API, ResourceClaim
from engine.api.objects.storage import CSIDriver, PersistentVolume, PersistentVolumeClaim, VolumeAttachment
from engine.api.pod import Pod
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.names import object_path
from engine.cluster.object_watches import Reference, ReferredObjects
from engine.cluster.service_lister import ServiceLister
from engine.cluster.shared_watch import SharedWatch
from engine.cluster.tokens import Token, Tokens
from engine.cluster.trust_bundles import trust_bundles_of
from engine.cluster.watching import WatchedResource
from engine.host.tasks import Tasks
from engine.node.controlplane.control_plane import (
    config_map_names,
    names_trust_bundles,
    no_such_class,
    secret_names,
)

if TYPE_CHECKING:
    from engine.cluster.certificates.pod_certificates import PodCertificates
    from engine.cluster.certificates.pod_request import PodCertificate

_STORAGE: Final = "/apis/storage.k8s.io/v1"
NO_POD_CERTIFICATES: Final = (
    "projected podCertificate: this node does not request any (the feature gate PodCertificateRequest is off)"
)


class PodReferences:
    """Read objects in the pod's namespace; `clock` is monotonic. Without `certificates`, no pod gets one."""

    def __init__(
        self,
        client: ApiClient,
        tasks: Tasks,
        clock: Callable[[], float],
        certificates: PodCertificates | None = None,
    ) -> None:
        self._client = client
        self._listeners: list[Callable[[str], None]] = []
        self._objects = ReferredObjects(client, tasks, self._changed)
        self._tokens = Tokens(client, clock=clock)
        self._services = ServiceLister(client)
        self._kinds = tasks.passing("cluster-kind")
        # Changes of RuntimeClasses do not affect running pods: the class is read when a sandbox is created.
        self._classes = SharedWatch(client, self._kinds, _runtime_classes, lambda _: None)
        self._bundles = SharedWatch(client, self._kinds, partial(trust_bundles_of, client), self._changed)
        self._certificates = certificates
        if certificates is not None:
            certificates.on_change(self._changed)

    async def run(self) -> None:
        """Follow the services until cancelled; other objects are followed while pods refer to them."""
        await self._services.run()

    async def stop(self) -> None:
        await self._objects.stop()
        await self._kinds.stop()
        if self._certificates is not None:
            await self._certificates.stop()

    def follow(self, pod: Pod) -> None:
        namespace = pod.metadata.namespace
        wanted = [Reference(Secret, namespace, name) for name in secret_names(pod)]
        wanted += [Reference(ConfigMap, namespace, name) for name in config_map_names(pod)]
        self._objects.refer(pod.uid, wanted)
        self._classes.refer(pod.uid, needs=bool(pod.spec.runtime_class_name))
        self._bundles.refer(pod.uid, needs=names_trust_bundles(pod))
        if self._certificates is not None:
            self._certificates.follow(pod)

    def forget(self, uid: str) -> None:
        self._objects.refer(uid, ())
        self._classes.refer(uid, needs=False)
        self._bundles.refer(uid, needs=False)
        self._tokens.forget(uid)
        if self._certificates is not None:
            self._certificates.forget(uid)

    def on_change(self, changed: Callable[[str], None]) -> None:
        self._listeners.append(changed)

    async def secret(self, pod: Pod, name: str) -> Secret:
        return await self._objects.get(Secret, pod.metadata.namespace, name)

    async def config_map(self, pod: Pod, name: str) -> ConfigMap:
        return await self._objects.get(ConfigMap, pod.metadata.namespace, name)

    async def token(self, pod: Pod, audience: str, seconds: int) -> Token:
        return await self._tokens.token(pod, audience, seconds)

    async def service_account(self, pod: Pod) -> ServiceAccount:
        name = pod.spec.service_account_name
        return await self._client.get(_path(pod.metadata.namespace, "serviceaccounts", name), ServiceAccount)

    async def claim(self, pod: Pod, name: str) -> PersistentVolumeClaim:
        return await self._client.get(_claim_path(pod, name), PersistentVolumeClaim)

    async def patch_claim(self, pod: Pod, name: str, patch: object) -> PersistentVolumeClaim:
        return await self._client.patch(f"{_claim_path(pod, name)}/status", patch, PersistentVolumeClaim)

    async def persistent_volume(self, name: str) -> PersistentVolume:
        return await self._client.get(object_path("/api/v1/persistentvolumes", name), PersistentVolume)

    async def trust_bundles(self, pod: Pod) -> Mapping[str, ClusterTrustBundle]:
        try:
            return await self._bundles.all()
        except Unavailable as error:
            raise Unavailable(f"ClusterTrustBundle informer has not yet synced: {error}") from error

    async def pod_certificate(self, pod: Pod, volume: str, index: int) -> PodCertificate:
        if self._certificates is None:
            raise InvalidInput(NO_POD_CERTIFICATES)
        return await self._certificates.certificate(pod, volume, index)

    async def runtime_handler(self, pod: Pod) -> str:
        name = pod.spec.runtime_class_name
        if not name:
            return ""
        known = (await self._classes.all()).get(name)
        if known is None:
            raise no_such_class(name)
        return known.handler

    async def read_secret(self, namespace: str, name: str) -> Secret:
        return await self._client.get(_path(namespace, "secrets", name), Secret)

    async def csi_driver(self, name: str) -> CSIDriver:
        try:
            return await self._client.get(object_path(f"{_STORAGE}/csidrivers", name), CSIDriver)
        except ApiError as error:
            # CSIDrivers are optional: a driver without one has the defaults.
            if error.code == 404:
                raise NotFound(error.message, subject=error.subject) from error
            raise

    async def volume_attachment(self, name: str) -> VolumeAttachment:
        return await self._client.get(object_path(f"{_STORAGE}/volumeattachments", name), VolumeAttachment)

    async def resource_claim(self, pod: Pod, name: str) -> ResourceClaim:
        namespace = object_path(f"{API}/namespaces", pod.metadata.namespace)
        return await self._client.get(object_path(f"{namespace}/resourceclaims", name), ResourceClaim)

    def services(self) -> Sequence[Service] | None:
        return self._services.all()

    def _changed(self, uid: str) -> None:
        for changed in self._listeners:
            changed(uid)


def _claim_path(pod: Pod, name: str) -> str:
    return _path(pod.metadata.namespace, "persistentvolumeclaims", name)


def _path(namespace: str, resource: str, name: str) -> str:
    return object_path(f"{object_path('/api/v1/namespaces', namespace)}/{resource}", name)


async def _runtime_classes() -> WatchedResource[RuntimeClass]:
    return WatchedResource("/apis/node.k8s.io/v1/runtimeclasses", RuntimeClass)
