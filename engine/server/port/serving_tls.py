"""TLS as the port speaks it: the node's certificate, what a client may bring, versions and ciphers.

The files are looked at with each connection, so a certificate or authority that was replaced is used from
the next one on. What cannot be read leaves what is known in force.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.api.errors import InvalidInput

log = logging.getLogger("kubengine.port")

VERSIONS = {
    "": ssl.TLSVersion.TLSv1_2,
    "VersionTLS10": ssl.TLSVersion.TLSv1,
    "VersionTLS11": ssl.TLSVersion.TLSv1_1,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}
USUAL_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
}
"""Names of a KubeletConfiguration, and OpenSSL's. Those of TLS 1.3 are always on, as with the kubelet."""
TLS13 = frozenset(("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"))

Seen = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class ServingFiles:
    """PEM files; `certificate` and `key` may be one. Without `client_authorities` no certificate is asked for."""

    certificate: Path
    key: Path
    client_authorities: Path | None = None


class ServingTLS:
    """`context()` for the next connection. Raises InvalidInput for a version or cipher that is none."""

    def __init__(self, files: ServingFiles, *, min_version: str = "", ciphers: Sequence[str] | None = None):
        if min_version not in VERSIONS:
            known = ", ".join(filter(None, VERSIONS))
            raise InvalidInput(f"expected one of {known}, got {min_version!r}", subject="tlsMinVersion")
        self._files = files
        self._min_version = VERSIONS[min_version]
        self._ciphers = _openssl_ciphers(ciphers or ())
        self._seen: Seen | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Raises InvalidInput, naming the files, where there has never been a usable one."""
        try:
            seen = self._look()
            if seen != self._seen or self._context is None:
                self._context, self._seen = self._read(), seen
        except (OSError, ValueError) as error:
            files = self._files
            subject = f"{files.certificate}, {files.key}" + (
                f", {files.client_authorities}" if files.client_authorities else ""
            )
            failure = InvalidInput(f"no usable certificate and key: {error}", subject=subject)
            if self._context is None:
                raise failure from error
            log.warning("%s; the one before is used on", failure)
        return self._context

    def _look(self) -> Seen:
        """What changes when a file is written or replaced."""
        files = self._files
        paths = [files.certificate, files.key, *filter(None, [files.client_authorities])]
        return tuple((found.st_ino, found.st_mtime_ns, found.st_size) for found in map(os.stat, paths))

    def _read(self) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self._min_version
        context.set_ciphers(self._ciphers)
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.load_cert_chain(files.certificate, files.key)
        if files.client_authorities is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(files.client_authorities)
        return context


def _openssl_ciphers(names: Sequence[str]) -> str:
    unknown = [name for name in names if name not in CIPHERS and name not in TLS13]
    if unknown:
        raise InvalidInput(f"unknown: {', '.join(unknown)}", subject="tlsCipherSuites")
    return ":".join(CIPHERS[name] for name in names if name in CIPHERS) or USUAL_CIPHERS
