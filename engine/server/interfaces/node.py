"""What the server asks of a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from engine.api.config import KubeletConfiguration
from engine.api.kubengine_config import KubengineConfiguration
from engine.api.pod import Pod
from engine.metrics import Registry
from engine.node.logs.container_access import ContainerAccess
from engine.node.stats.runtime_use import RuntimeUse
from engine.node.stats.used import NodeUsage

T = TypeVar("T")


class ServedNode(Protocol):
    """A node as its HTTP API sees it. Every method is called on the node's event loop."""

    @property
    def config(self) -> KubeletConfiguration: ...

    @property
    def kubengine_config(self) -> KubengineConfiguration: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def rooms(self) -> Mapping[str, object]:
        """Managers by name. One that can speak has `describe(**query)`, JSON-able and possibly
        awaitable, or pieces of JSON lines when they come; one that can be told something has
        `async act(action, query)`."""
        ...

    def pods(self) -> Sequence[Pod]:
        """Every pod that the node knows, with status."""
        ...

    async def running_pods(self) -> Sequence[Pod]:
        """Pods that the runtime runs, known to the node or not: names, uid and containers."""
        ...

    def healthz(self) -> Sequence[tuple[str, str | None]]:
        """Each check with what is wrong, None when it is well."""
        ...

    async def stats_summary(self) -> Iterable[bytes]:
        """The kubelet's `Summary` as JSON, in pieces."""
        ...

    async def cpu_and_memory_summary(self) -> Iterable[bytes]:
        """The same with no more than CPU, memory and swap, for which nothing else is looked at."""
        ...

    async def claims_usage(self) -> Sequence[Mapping[str, Any]]:
        """The kubelet's `VolumeStats` of the claims that pods have, as JSON-able data."""
        ...

    async def usage(self) -> NodeUsage:
        """The same as it is read, from cgroups and network devices."""
        ...

    async def runtime_use(self, usage: NodeUsage) -> Sequence[RuntimeUse]:
        """CPU and memory of what `usage` has no numbers of, where the runtime has."""
        ...


class ApiServer(Protocol):
    """`engine.cluster.client.ApiClient`, as far as reviews need it."""

    async def create(self, path: str, value: Any, kind: type[T]) -> T: ...


class ServingPair(Protocol):
    """Files in PEM; both may be one."""

    @property
    def certificate(self) -> Path: ...

    @property
    def key(self) -> Path: ...


class ServingCertificate(Protocol):
    """What the port shows; `pair` may be another at any time, None while there is none."""

    @property
    def pair(self) -> ServingPair | None: ...

    async def start(self) -> None: ...


class PortNode(ServedNode, Protocol):
    """A node as its own port sees it."""

    @property
    def name(self) -> str: ...

    @property
    def serving_certificate(self) -> ServingCertificate: ...

    @property
    def api(self) -> ApiServer | None:
        """Who reviews tokens and access; None without a cluster."""
        ...

    @property
    def containers(self) -> ContainerAccess: ...
