"""Counts requests and measures how long their answers take, under the kubelet's metric names.

A request counts until its answer has been sent, a session until it ends. Paths and methods come from peers,
so only known ones are labels (kubelet v1.36, `getMetricBucket`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from engine.metrics import Registry

ServerType = Literal["readonly", "readwrite"]
_LABELS: Final = ("method", "path", "server_type", "long_running")
_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE"))
_PATHS: Final = frozenset(
    {
        *("healthz", "pods", "stats", "metrics", "metrics/cadvisor", "metrics/probes", "metrics/resource"),
        *("run", "exec", "attach", "portForward", "containerLogs", "configz", "runningpods", "checkpoint"),
        *("logs", "flagz", "statusz", "debug"),
    }
)
_LONG_RUNNING: Final = frozenset(("exec", "attach", "debug"))
"""As with a kubelet, which does not count `portForward` among them."""


def path_label(path: str) -> str:
    """Return the label of a path: its first part, two parts of metrics, or `other`."""
    first, _, rest = path.removeprefix("/").partition("/")
    label = f"metrics/{rest.partition('/')[0]}" if first == "metrics" and rest else first
    return label if label in _PATHS else "other"


def count_websocket(registry: Registry, subresource: str) -> None:
    """Count a session over a WebSocket that is translated for the runtime."""
    registry.counter(
        "kubelet_websocket_streaming_requests_total",
        "WebSocket sessions of exec, attach and portforward that were translated for the runtime.",
        ("subresource",),
    ).inc(subresource)


class ServerRequestMetrics:
    """Measure the requests to one kind of server of a node."""

    def __init__(self, registry: Registry, server_type: ServerType) -> None:
        self._server_type = server_type
        self._requests = registry.counter(
            "kubelet_http_requests_total", "Requests received since the server started.", _LABELS
        )
        self._duration = registry.histogram(
            "kubelet_http_requests_duration_seconds", "Duration in seconds to serve requests.", _LABELS
        )
        self._inflight = registry.gauge(
            "kubelet_http_inflight_requests", "Requests that are being served.", _LABELS
        )

    @contextmanager
    def serving(self, method: str, path: str) -> Iterator[None]:
        """Count one request for as long as it is served."""
        label = path_label(path)
        labels = (
            # A peer chooses both: without a limit it could fill the registry with series.
            method if method in _METHODS else "other",
            label,
            self._server_type,
            str(label in _LONG_RUNNING).lower(),
        )
        self._requests.inc(*labels)
        self._inflight.inc(*labels)
        began = time.monotonic()
        try:
            yield
        finally:
            self._inflight.inc(*labels, by=-1)
            self._duration.observe(time.monotonic() - began, *labels)
