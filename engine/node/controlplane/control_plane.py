"""States what the node needs of its control plane, and how a node without one answers.

`cluster_control_plane.ClusterControlPlane` connects to an API server; `NoControlPlane` stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from engine.api.meta import ObjectMeta
from engine.api.node import NodeSpec
from engine.api.pod import Pod
from engine.csi.records import DriverRecords, NoRecords
from engine.node.controlplane.cluster_objects import ClusterObjects, NoCluster, NodeSlices, NoSlices
from engine.node.sources.pod_sink import MANIFESTS, PodSink

T = TypeVar("T")

NodeHeard = Callable[[ObjectMeta, NodeSpec, Mapping[str, Any]], None]
"""Called with metadata, spec and the JSON status of the API server's Node."""


class Api(Protocol):
    """Call the API server as this node (`engine.cluster.client.ApiClient`)."""

    async def create(self, path: str, value: Any, kind: type[T]) -> T: ...


class ControlPlane(Protocol):
    """What the node reports to its control plane and receives from it."""

    sources: Sequence[str]
    """The sources of the node's pods."""

    objects: ClusterObjects
    """The objects of the cluster that pods refer to."""

    drivers: DriverRecords
    """Records of storage drivers (CSINode)."""

    slices: NodeSlices
    """What the cluster knows of this node's devices."""

    @property
    def api(self) -> Api | None:
        """Return the client of the API server, if there is one."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def follow_pods(self, pods: PodSink) -> None:
        """Start following the pods of the cluster."""

    async def unfollow_pods(self) -> None:
        """Stop following the pods of the cluster."""

    def stop_waiting(self) -> None:
        """Stop waiting for the API server to acknowledge terminated pods."""

    def conditions_changed(self) -> None:
        """Handle a changed condition of the node."""

    def manifests_changed(self, pods: Sequence[Pod]) -> None:
        """Handle the pods of all manifests."""

    def pod_changed(self, pod: Pod, *, may_run: bool) -> None:
        """Handle a pod's changed status; `may_run` tells whether something of it runs or
        will run.
        """

    async def end_known(self, pod: Pod) -> None:
        """Return when the source of a pod knows its final status; the pod holds nothing of the node any
        longer.
        """


class NoControlPlane:
    """The control plane of a standalone node: reports go nowhere and there are no cluster objects."""

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

    def stop_waiting(self) -> None: ...

    def conditions_changed(self) -> None: ...

    def manifests_changed(self, pods: Sequence[Pod]) -> None: ...

    def pod_changed(self, pod: Pod, *, may_run: bool) -> None: ...

    async def end_known(self, pod: Pod) -> None: ...
