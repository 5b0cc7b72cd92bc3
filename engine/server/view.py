"""What the server asks of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine.api.config import KubeletConfiguration
from engine.api.kubengine_config import KubengineConfiguration
from engine.api.pod import Pod
from engine.metrics import Registry


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
        awaitable; one that can be told something has `async act(action, query)`."""
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

    async def stats_summary(self) -> Any:
        """The kubelet's `Summary`, as JSON-able data."""
        ...
