"""Ends the node's pods when its machine shuts down (`engine.shutdown`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.host.node_context import NodeContext
from engine.hostsetup.host_places import HostPlaces
from engine.node.pods import PodManager
from engine.shutdown.groups import shutdown_periods
from engine.shutdown.metrics import ShutdownMetrics

if TYPE_CHECKING:
    from engine.shutdown.manager import ShutdownManager


def shutdown_manager(
    context: NodeContext, host: HostPlaces | None, pods: PodManager, changed: Callable[[], None]
) -> ShutdownManager | None:
    """Return the manager of a node that has a machine, and pods that a shutdown waits for.

    `changed()` is called when the node is shutting down, or no longer is.
    """
    metrics = ShutdownMetrics(context.registry)
    periods = shutdown_periods(context.config)
    if not periods or host is None:
        return None
    from engine.shutdown.manager import LogindPlaces, ShutdownManager

    return ShutdownManager(
        context,
        periods,
        LogindPlaces(host.system_bus, host.logind_drop_ins),
        active_pods=pods.active,
        kill_pod=pods.kill,
        volumes_left=pods.wait_volumes_removed,
        changed=changed,
        metrics=metrics,
    )
