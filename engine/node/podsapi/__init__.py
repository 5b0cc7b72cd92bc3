"""The pods API of the node, which gives its pods to local clients over gRPC; not loaded without its gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.api.pod import Pod
from engine.host.node_context import NodeContext
from engine.node.sync.services import PodListener

if TYPE_CHECKING:
    from engine.node.podsapi.server import PodsServer


def pods_server(
    context: NodeContext, pods: Callable[[], Sequence[Pod]], listeners: list[PodListener]
) -> PodsServer | None:
    """Return the server if its gate is on, and add its watchers to those who follow the pods."""
    if not context.config.gate("PodsAPI", False):
        return None
    from engine.node.podsapi.server import PodsServer

    server = PodsServer(context, pods)
    listeners.append(server.watchers)
    return server
