"""Start and end of the last graceful shutdown, under the kubelet's metric names."""

from __future__ import annotations

from engine.metrics import Registry


class ShutdownMetrics:
    """Show the times of the last shutdown; both values are 0 before the first one, as in a kubelet."""

    def __init__(self, registry: Registry) -> None:
        self._began = registry.gauge(
            "kubelet_graceful_shutdown_start_time_seconds",
            "Last graceful shutdown start time since unix epoch in seconds",
        )
        self._ended = registry.gauge(
            "kubelet_graceful_shutdown_end_time_seconds",
            "Last graceful shutdown end time since unix epoch in seconds",
        )
        self.show(0, 0)

    def show(self, began: int, ended: int) -> None:
        """Set the values, in Unix seconds."""
        self._began.set(began)
        self._ended.set(ended)
