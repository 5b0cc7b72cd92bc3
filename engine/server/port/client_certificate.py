"""A client's certificate as its handshake left it, and how long what was said then holds."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Presented:
    """Good before `until` (Unix seconds), as long as `authorities` (PEM) are those that vouch for clients."""

    until: float
    authorities: bytes

    def holds(self, now: float, authorities: bytes) -> bool:
        return now < self.until and self.authorities == authorities


def presented(session: ssl.SSLObject, authorities: bytes) -> Presented | None:
    """None for a client without a certificate."""
    certificate = session.getpeercert()
    if not certificate:
        return None
    return Presented(ssl.cert_time_to_seconds(str(certificate["notAfter"])), authorities)
