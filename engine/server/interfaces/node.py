"""States what the server needs from the node that it serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from engine.api.config import KubeletConfiguration
from engine.api.kubengine_config import KubengineConfiguration
from engine.api.pod import Pod
from engine.metrics import Registry

if TYPE_CHECKING:
    from engine.node.logs.container_access import ContainerAccess
    from engine.node.stats.runtime_use import RuntimeUse
    from engine.node.stats.used import NodeUsage

T = TypeVar("T")


class ServedNode(Protocol):
    """State the node's interface for its HTTP API. Every method is called on the node's event loop."""

    @property
    def config(self) -> KubeletConfiguration: ...

    @property
    def kubengine_config(self) -> KubengineConfiguration: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def components(self) -> Mapping[str, object]:
        """Return managers by name.

        A component that describes itself has `describe(**query)`, which returns JSON-able values, possibly
        awaitable, or pieces of JSON lines as they come. A component that takes actions has `async act(action,
        query)`.
        """
        ...

    def pods(self) -> Sequence[Pod]:
        """Return every pod that the node knows, with its status."""
        ...

    async def running_pods(self) -> Sequence[Pod]:
        """Return the pods that the runtime runs, known to the node or not: names, uid and containers."""
        ...

    def healthz(self) -> Sequence[tuple[str, str | None]]:
        """Return the problem of each health check, or None."""
        ...

    async def stats_summary(self) -> Iterable[bytes]:
        """Yield the kubelet's `Summary` as JSON."""
        ...

    async def cpu_and_memory_summary(self) -> Iterable[bytes]:
        """Yield the Summary with only CPU, memory and swap, without measuring anything else."""
        ...

    async def claims_usage(self) -> Sequence[Mapping[str, Any]]:
        """Return the kubelet's `VolumeStats` of the mounted claims, ready for JSON."""
        ...

    async def usage(self, *, descriptors: bool = False) -> NodeUsage:
        """Return the usage as read from cgroups and network devices; with `descriptors`, also the numbers of
        open files and sockets.
        """
        ...

    async def runtime_use(self, usage: NodeUsage) -> Sequence[RuntimeUse]:
        """Return CPU and memory from the runtime, for what `usage` has no numbers of."""
        ...


class ReviewServer(Protocol):
    """State the part of `engine.cluster.client.ApiClient` that reviews need."""

    async def create(self, path: str, value: Any, kind: type[T]) -> T: ...


class PemFiles(Protocol):
    """Name the PEM files of certificate and key; both may be the same file."""

    @property
    def certificate(self) -> Path: ...

    @property
    def key(self) -> Path: ...


class CertificateSource(Protocol):
    """Provide the certificate that the port serves; `pair` may change at any time, and is None while
    there is none.
    """

    @property
    def pair(self) -> PemFiles | None: ...

    async def start(self) -> None: ...


class PortNode(ServedNode, Protocol):
    """State the node's interface for its own port (10250)."""

    @property
    def name(self) -> str: ...

    @property
    def serving_certificate(self) -> CertificateSource: ...

    @property
    def api(self) -> ReviewServer | None:
        """Return the API server that reviews tokens and access; None without a cluster."""
        ...

    @property
    def containers(self) -> ContainerAccess: ...
