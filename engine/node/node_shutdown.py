"""Ends the node's pods when its machine shuts down (`engine.shutdown`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.node.nodeinfo.context import NodeContext
from engine.node.pods import PodManager
from engine.shutdown.groups import shutdown_periods
from engine.shutdown.metrics import ShutdownMetrics

if TYPE_CHECKING:
    from engine.shutdown.manager import ShutdownManager


def shutdown_manager(
    node: NodeContext, pods: PodManager, changed: Callable[[], None]
) -> ShutdownManager | None:
    """Return the manager of a node that has a machine, and pods that a shutdown waits for.

    `changed()` is called when the node is shutting down, or no longer is.
    """
    metrics = ShutdownMetrics(node.registry)
    periods = shutdown_periods(node.config)
    if not periods or node.host is None:
        return None
    from engine.shutdown.manager import STATE_FILE, LogindPlaces, ShutdownManager

    return ShutdownManager(
        periods,
        LogindPlaces(node.host.system_bus, node.host.logind_drop_ins),
        active_pods=pods.active,
        kill_pod=pods.kill,
        volumes_left=pods.wait_volumes_left,
        changed=changed,
        state_file=node.root / STATE_FILE,
        recorder=node.recorder,
        metrics=metrics,
        tasks=node.tasks,
        clock=node.clock,
    )
