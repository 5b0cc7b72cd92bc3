"""Counts requests to an API server under client-go's metric names."""

from __future__ import annotations

from typing import Final

from engine.metrics import Registry

FAILED: Final = "<error>"
_BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


class RequestMetrics:
    """The metrics of one client; `host` is its server with port."""

    def __init__(self, registry: Registry, host: str) -> None:
        self._host = host
        self._total = registry.counter(
            "rest_client_requests_total",
            "Requests to the API server, by HTTP status, method and server.",
            ["code", "method", "host"],
        )
        self._seconds = registry.histogram(
            "rest_client_request_duration_seconds",
            "Time until the API server began to answer, by method and server.",
            ["verb", "host"],
            _BUCKETS,
        )

    def answered(self, method: str, status: int, seconds: float) -> None:
        self._count(method, str(status), seconds)

    def failed(self, method: str, seconds: float) -> None:
        """Count a request without a response, or one that nobody waits for any longer."""
        self._count(method, FAILED, seconds)

    def _count(self, method: str, code: str, seconds: float) -> None:
        self._total.inc(code, method, self._host)
        self._seconds.observe(seconds, method, self._host)
