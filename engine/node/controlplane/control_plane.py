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
from engine.node.controlplane.cluster_objects import ClusterObjects, NoCluster
from engine.node.sources.pod_sink import MANIFESTS, PodSink

T = TypeVar("T")

NodeHeard = Callable[[ObjectMeta, NodeSpec, Mapping[str, Any]], None]
"""Is told of the API server's Node; its status as its JSON is."""


class Api(Protocol):
    """An API server that takes questions (`engine.cluster.client.ApiClient`)."""

    async def create(self, path: str, value: Any, kind: type[T]) -> T: ...


class ControlPlane(Protocol):
    """What the node tells its cluster, and when it begins and ends to hear of it."""

    sources: Sequence[str]
    """Where the node's pods come from."""

    objects: ClusterObjects
    """What they take from the cluster."""

    drivers: DriverRecords
    """Who is told of storage drivers."""

    @property
    def api(self) -> Api | None:
        """Who can be asked, as this node."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def follow_pods(self, pods: PodSink) -> None:
        """The cluster's pods come to the node from now on."""

    async def unfollow_pods(self) -> None:
        """What the cluster wants is heard no more."""

    def stop_waiting(self) -> None:
        """The node is given up: whose end the cluster does not take in is waited for no more."""

    def conditions_changed(self) -> None:
        """The node's conditions are other ones."""

    def manifests_changed(self, pods: Sequence[Pod]) -> None:
        """The pods that manifests want here."""

    def pod_changed(self, pod: Pod, *, may_run: bool) -> None:
        """A pod's status is another one; `may_run`: something of it runs, or will."""

    async def end_known(self, pod: Pod) -> None:
        """A pod holds nothing of the node any more; returns when its last status is known to its source."""


class NoControlPlane:
    """A node of no cluster: nobody is told, nobody asks."""

    sources: Sequence[str] = (MANIFESTS,)
    api: Api | None = None

    def __init__(self, runtime_classes: Callable[[], Mapping[str, str]]) -> None:
        """`runtime_classes()` are the handlers of the node's runtime, by class."""
        self.objects: ClusterObjects = NoCluster(runtime_classes)
        self.drivers: DriverRecords = NoRecords()

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def follow_pods(self, pods: PodSink) -> None: ...

    async def unfollow_pods(self) -> None: ...

    def stop_waiting(self) -> None: ...

    def conditions_changed(self) -> None: ...

    def manifests_changed(self, pods: Sequence[Pod]) -> None: ...

    def pod_changed(self, pod: Pod, *, may_run: bool) -> None: ...

    async def end_known(self, pod: Pod) -> None: ...
