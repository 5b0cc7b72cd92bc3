"""Describes a client's certificate after the handshake, and how long its verification holds."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Presented:
    """Valid before `until` (Unix seconds), and while `authorities` (PEM) are the trusted client CAs."""

    until: float
    authorities: bytes

    def holds(self, now: float, authorities: bytes) -> bool:
        return now < self.until and self.authorities == authorities


def presented(session: ssl.SSLObject, authorities: bytes) -> Presented | None:
    """Return the certificate, or None if the client showed none."""
    certificate = session.getpeercert()
    if not certificate:
        return None
    return Presented(ssl.cert_time_to_seconds(str(certificate["notAfter"])), authorities)
