"""Defines the interface between the node and its control plane, and implements it for standalone nodes.

`cluster_control_plane.ClusterControlPlane` connects to an API server; `NoControlPlane` is for a node without
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from engine.api.errors import InvalidInput, NotFound, Refused
from engine.api.meta import ObjectMeta
from engine.api.node import NodeSpec
from engine.api.objects.cluster_objects import (
    ClusterTrustBundle,
    ConfigMap,
    Secret,
    Service,
    ServiceAccount,
)
from engine.api.objects.dynamic_resources import ResourceClaim, ResourceSlice
from engine.api.objects.storage import CSIDriver, PersistentVolume, PersistentVolumeClaim, VolumeAttachment
from engine.api.pod import Container, Pod, Volume
from engine.api.references import KeySelector, WholeObject
from engine.csi.records import DriverRecords, NoRecords
from engine.node.sources.pod_sink import MANIFESTS, PodSink

if TYPE_CHECKING:
    from engine.cluster.certificates.pod_request import PodCertificate

T = TypeVar("T")

NodeHeard = Callable[[ObjectMeta, NodeSpec, Mapping[str, Any]], None]
"""Called with metadata, spec and the JSON status of the API server's Node."""


class ServiceAccountToken(Protocol):
    """Hold a service account token.

    `renew_at` is a time of the node's steady clock; `expires_at` is the server's, in Unix seconds.
    """

    @property
    def text(self) -> str: ...

    @property
    def renew_at(self) -> float: ...

    @property
    def expires_at(self) -> float: ...


class ClusterObjects(Protocol):
    """Provide the API objects that pods refer to.

    `pod_references.PodReferences` implements it. Callers `follow` the pod before they read its objects.
    """

    def follow(self, pod: Pod) -> None:
        """Start following the objects that the pod refers to."""

    def forget(self, uid: str) -> None:
        """Stop following the objects of the pod."""

    def on_change(self, changed: Callable[[str], None]) -> None:
        """Call `changed(pod uid)` whenever an object that the pod refers to changes."""

    async def secret(self, pod: Pod, name: str) -> Secret:
        """Return the secret. Raises `NotFound` if it does not exist, `Refused` if it is not known yet."""

    async def config_map(self, pod: Pod, name: str) -> ConfigMap:
        """Return the ConfigMap. Raises `NotFound` if it does not exist, `Refused` if it is not known yet."""

    async def token(self, pod: Pod, audience: str, seconds: int) -> ServiceAccountToken:
        """Request a service account token. Raises `Refused`."""

    async def service_account(self, pod: Pod) -> ServiceAccount:
        """Read the pod's service account from the API server. Raises `Refused` with the server's message."""

    async def claim(self, pod: Pod, name: str) -> PersistentVolumeClaim:
        """Return the PersistentVolumeClaim. Raises `Refused` with the API server's message."""

    async def patch_claim(self, pod: Pod, name: str, patch: object) -> PersistentVolumeClaim:
        """Patch the status of a claim (strategic merge). Raises `Refused` with the API server's message."""

    async def persistent_volume(self, name: str) -> PersistentVolume:
        """Return the PersistentVolume. Raises `Refused` with the API server's message."""

    async def trust_bundles(self, pod: Pod) -> Mapping[str, ClusterTrustBundle]:
        """Return the ClusterTrustBundles by name, for a pod that refers to some. Raises `KubengineError`."""

    async def pod_certificate(self, pod: Pod, volume: str, index: int) -> PodCertificate:
        """Return the key and the certificates of a podCertificate source: the name of its volume, and its
        index there. Raises `KubengineError` while there are none.
        """

    async def runtime_handler(self, pod: Pod) -> str:
        """Return the handler of the pod's RuntimeClass, or ''. Raises `NotFound` if the class is missing."""

    async def read_secret(self, namespace: str, name: str) -> Secret:
        """Read a secret from the API server, for a CSI driver. Raises `Refused` with the server's message."""

    async def csi_driver(self, name: str) -> CSIDriver:
        """Return the CSIDriver. Raises `NotFound` if it does not exist, `Refused` with the API server's
        message.
        """

    async def volume_attachment(self, name: str) -> VolumeAttachment:
        """Return the VolumeAttachment. Raises `Refused` with the API server's message."""

    async def resource_claim(self, pod: Pod, name: str) -> ResourceClaim:
        """Return the ResourceClaim. Raises `Refused` with the API server's message."""

    def services(self) -> Sequence[Service] | None:
        """Return the services, or None before they are known."""


_NONE: Final = "this node has not joined a cluster"


def no_such_class(name: str) -> NotFound:
    return NotFound(f'runtimeclass.node.k8s.io "{name}" not found')


class NoCluster:
    """Refuse references to API objects on a node without an API server. `runtime_classes()` maps
    RuntimeClasses to handlers of the runtime.
    """

    def __init__(self, runtime_classes: Callable[[], Mapping[str, str]]) -> None:
        self._runtime_classes = runtime_classes

    def follow(self, pod: Pod) -> None: ...

    def forget(self, uid: str) -> None: ...

    def on_change(self, changed: Callable[[str], None]) -> None: ...

    async def secret(self, pod: Pod, name: str) -> Secret:
        raise Refused(_NONE, subject=f"secret {pod.metadata.namespace}/{name}")

    async def config_map(self, pod: Pod, name: str) -> ConfigMap:
        raise Refused(_NONE, subject=f"config map {pod.metadata.namespace}/{name}")

    async def token(self, pod: Pod, audience: str, seconds: int) -> ServiceAccountToken:
        raise Refused(_NONE, subject=f"service account {pod.spec.service_account_name}")

    async def service_account(self, pod: Pod) -> ServiceAccount:
        raise Refused(_NONE, subject=f"service account {pod.spec.service_account_name}")

    async def claim(self, pod: Pod, name: str) -> PersistentVolumeClaim:
        raise Refused(_NONE, subject=f"claim {pod.metadata.namespace}/{name}")

    async def patch_claim(self, pod: Pod, name: str, patch: object) -> PersistentVolumeClaim:
        raise Refused(_NONE, subject=f"claim {pod.metadata.namespace}/{name}")

    async def persistent_volume(self, name: str) -> PersistentVolume:
        raise Refused(_NONE, subject=f"persistent volume {name}")

    async def trust_bundles(self, pod: Pod) -> Mapping[str, ClusterTrustBundle]:
        raise InvalidInput("ClusterTrustBundle projection is not supported in static kubelet mode")

    async def pod_certificate(self, pod: Pod, volume: str, index: int) -> PodCertificate:
        raise Refused(_NONE, subject=f"pod certificate of volume {volume}")

    async def runtime_handler(self, pod: Pod) -> str:
        name = pod.spec.runtime_class_name
        if not name:
            return ""
        handler = self._runtime_classes().get(name)
        if handler is None:
            raise no_such_class(name)
        return handler

    async def read_secret(self, namespace: str, name: str) -> Secret:
        raise Refused(_NONE, subject=f"secret {namespace}/{name}")

    async def csi_driver(self, name: str) -> CSIDriver:
        raise Refused(_NONE, subject=f"driver {name}")

    async def volume_attachment(self, name: str) -> VolumeAttachment:
        raise Refused(_NONE, subject=f"volume attachment {name}")

    async def resource_claim(self, pod: Pod, name: str) -> ResourceClaim:
        raise Refused(_NONE, subject=f"ResourceClaim {pod.metadata.namespace}/{name}")

    def services(self) -> Sequence[Service] | None:
        # Not None, which would mean that the services are not known yet.
        return ()


class NodeSlices(Protocol):
    """Publish the ResourceSlices of this node in its cluster."""

    async def list(self, driver: str) -> Sequence[ResourceSlice]:
        """List the slices of a driver. Raise `Refused`."""

    async def delete(self, driver: str) -> None:
        """Delete the slices of a driver, or of all drivers if it is ''. Raise `Refused`."""


class NoSlices:
    """Stand in for `NodeSlices` on a node without an API server."""

    async def list(self, driver: str) -> Sequence[ResourceSlice]:
        return ()

    async def delete(self, driver: str) -> None: ...


def secret_names(pod: Pod) -> set[str]:
    """Return the names of all secrets that a pod refers to."""
    of_volumes = (name for volume in pod.spec.volumes or [] for name in _volume_secrets(volume))
    of_containers = (name for container in pod.every_container for name in secrets_of(container))
    of_pulls = (reference.name for reference in pod.spec.image_pull_secrets or [])
    return {name for names in (of_volumes, of_containers, of_pulls) for name in names if name}


def config_map_names(pod: Pod) -> set[str]:
    """Return the names of all ConfigMaps that a pod refers to."""
    of_volumes = (name for volume in pod.spec.volumes or [] for name in _volume_config_maps(volume))
    of_containers = (name for container in pod.every_container for name in config_maps_of(container))
    return {name for names in (of_volumes, of_containers) for name in names if name}


def names_trust_bundles(pod: Pod) -> bool:
    sources = (
        s for v in pod.spec.volumes or [] if v.projected is not None for s in v.projected.sources or []
    )
    return any(source.cluster_trust_bundle is not None for source in sources)


def _volume_secrets(volume: Volume) -> Iterator[str]:
    if volume.secret is not None:
        yield volume.secret.secret_name
    for source in (volume.projected and volume.projected.sources) or []:
        if source.secret is not None:
            yield source.secret.name


def _volume_config_maps(volume: Volume) -> Iterator[str]:
    if volume.config_map is not None:
        yield volume.config_map.name
    for source in (volume.projected and volume.projected.sources) or []:
        if source.config_map is not None:
            yield source.config_map.name


def secrets_of(container: Container) -> dict[str, bool]:
    """Return the secrets that a container's environment refers to: name → whether it is optional."""
    whole = [source.secret_ref for source in container.env_from or []]
    keys = [v.value_from.secret_key_ref for v in container.env or [] if v.value_from is not None]
    return _optional([*whole, *keys])


def config_maps_of(container: Container) -> dict[str, bool]:
    """Return the ConfigMaps that a container's environment refers to: name → whether it is optional."""
    whole = [source.config_map_ref for source in container.env_from or []]
    keys = [v.value_from.config_map_key_ref for v in container.env or [] if v.value_from is not None]
    return _optional([*whole, *keys])


def _optional(references: Iterable[WholeObject | KeySelector | None]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for reference in references:
        if reference is not None and reference.name:
            # An object is required if any reference to it is required.
            found[reference.name] = bool(reference.optional) and found.get(reference.name, True)
    return found


class Api(Protocol):
    """Call the API server as this node (`engine.cluster.client.ApiClient`)."""

    async def create(self, path: str, value: Any, kind: type[T]) -> T: ...


class ControlPlane(Protocol):
    """Report to the node's control plane, and receive from it."""

    sources: Sequence[str]
    """The sources of the node's pods."""

    objects: ClusterObjects
    """The objects of the cluster that pods refer to."""

    drivers: DriverRecords
    """Records of CSI drivers (CSINode)."""

    slices: NodeSlices
    """The ResourceSlices of this node's DRA drivers."""

    @property
    def api(self) -> Api | None:
        """Return the client of the API server, if there is one."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def follow_pods(self, pods: PodSink) -> None:
        """Start following the pods of the cluster."""

    async def unfollow_pods(self) -> None:
        """Stop following the pods of the cluster."""

    def stop_waiting_for_acknowledgements(self) -> None:
        """Stop waiting for the API server to acknowledge terminated pods."""

    def conditions_changed(self) -> None:
        """Handle a changed condition of the node."""

    def manifests_changed(self, pods: Sequence[Pod]) -> None:
        """Handle the complete list of static pods."""

    def pod_changed(self, pod: Pod, *, may_run: bool) -> None:
        """Handle a pod's changed status; `may_run` is false once none of its containers runs or will run."""

    async def wait_final_status(self, pod: Pod) -> None:
        """Wait until the pod's source has its final status. The pod uses no resources of the node by then."""


class NoControlPlane:
    """Replace the control plane on a standalone node: reports are discarded, and there are no API objects."""

    sources: Sequence[str] = (MANIFESTS,)
    api: Api | None = None

    def __init__(self, runtime_classes: Callable[[], Mapping[str, str]]) -> None:
        """Take `runtime_classes`, which maps RuntimeClasses to the handlers of the node's runtime."""
        self.objects: ClusterObjects = NoCluster(runtime_classes)
        self.drivers: DriverRecords = NoRecords()
        self.slices: NodeSlices = NoSlices()

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def follow_pods(self, pods: PodSink) -> None: ...

    async def unfollow_pods(self) -> None: ...

    def stop_waiting_for_acknowledgements(self) -> None: ...

    def conditions_changed(self) -> None: ...

    def manifests_changed(self, pods: Sequence[Pod]) -> None: ...

    def pod_changed(self, pod: Pod, *, may_run: bool) -> None: ...

    async def wait_final_status(self, pod: Pod) -> None: ...
