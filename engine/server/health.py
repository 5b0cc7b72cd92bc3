"""Serves `/healthz` and counts how often each check ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.server.http.exchange import TEXT, Request, Response, failure
from engine.server.interfaces.node import ServedNode

HEALTH_METRICS: Final = "kubernetes_healthcheck"
"""The prefix of the metric names."""
_HEALTHZ: Final = "healthz"


class ServerHealth:
    """The health checks of one node; every run counts for `/metrics/slis`, as in the kubelet."""

    def __init__(self, view: ServedNode) -> None:
        self._view = view
        self._current = view.registry.gauge(
            HEALTH_METRICS, "1 if the last run of the check passed, else 0.", ["name", "type"]
        )
        self._total = view.registry.counter(
            f"{HEALTH_METRICS}s_total", "Health checks run, by outcome.", ["name", "type", "status"]
        )

    def look(self) -> Sequence[tuple[str, str | None]]:
        """Run the checks; return the problem of each, or None."""
        checks = self._view.healthz()
        for name, error in checks:
            self._current.set(int(error is None), name, _HEALTHZ)
            self._total.inc(name, _HEALTHZ, "error" if error else "success")
        return checks

    def answer(self, request: Request) -> Response:
        """Answer `ok`, or 500 with the failing checks; `?verbose` lists every check."""
        if request.method not in {"GET", "HEAD"}:
            return failure(405, f"{request.method} is not allowed here")
        name = request.path.removeprefix("/healthz").strip("/")
        checks = self.look()
        if name:
            checks = [check for check in checks if check[0] == name]
            if not checks:
                return failure(404, f"no health check named {name}")
        failed = any(error for _, error in checks)
        if not failed and "verbose" not in request.query:
            return Response(200, TEXT, b"ok")
        lines = [f"[-]{check} failed: {error}\n" if error else f"[+]{check} ok\n" for check, error in checks]
        lines.append(f"healthz check {'failed' if failed else 'passed'}\n")
        return Response(500 if failed else 200, TEXT, "".join(lines).encode())
