"""Measures how long a rotated certificate remains valid, and counts failed renewals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, Literal

from engine.metrics import Registry, Sample

_FAILURES: Final = {
    "client": "kubelet_certificate_manager_client_expiration_renew_errors",
    "server": "kubelet_server_expiration_renew_errors",
}


class CertificateMetrics:
    """Measure the client or the server certificate; `clock` returns Unix seconds."""

    def __init__(
        self, registry: Registry, whose: Literal["client", "server"], clock: Callable[[], float]
    ) -> None:
        self.ends = math.inf
        """Expiry time in Unix seconds; infinite while there is no certificate."""
        self._clock = clock
        self._failures = registry.counter(_FAILURES[whose], f"Failed renewals of the {whose} certificate.")
        registry.collected(
            "gauge",
            f"kubelet_certificate_manager_{whose}_ttl_seconds",
            f"Seconds until the {whose} certificate expires; negative once it has expired, +Inf "
            "without a certificate.",
            [],
            self._left,
        )

    def failed(self) -> None:
        self._failures.inc()

    def _left(self) -> Iterator[Sample]:
        left = self.ends - self._clock()
        yield (), left if math.isinf(left) else math.trunc(left)
