"""Configures TLS of the port: the node's certificate, client CAs, versions and cipher suites.

The files are examined with each connection, so that replaced certificates and CAs count from the next one
on. If they cannot be read, the old ones stay in use, and that is logged once.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.api.errors import InvalidInput
from engine.server.interfaces.node import PemFiles

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
"""Cipher suites by their names in KubeletConfiguration, with OpenSSL's. TLS 1.3 suites are always on, as in
the kubelet.
"""
CURVES = {
    23: "prime256v1",
    24: "secp384r1",
    25: "secp521r1",
    29: "X25519",
    4587: "SecP256r1MLKEM768",
    4588: "X25519MLKEM768",
    4589: "SecP384r1MLKEM1024",
}
"""Curves by their numbers in KubeletConfiguration (IANA TLS groups), with OpenSSL's names."""
LAST_CURVE = 65535
TLS13 = frozenset(("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"))

Seen = tuple[tuple[str, int, int, int], ...]


class ServingTLS:
    """Create the TLS context of connections.

    `context()` returns the one for the next connection; `pair` returns the current files. `authorities` are
    the client CAs in PEM as of the last call. Without `client_authorities` no certificate is requested. Of
    `curves`, only the first that OpenSSL knows is offered, because Python can set only one
    (`set_ecdh_curve`). Raises InvalidInput for an unknown version, cipher or curve.
    """

    def __init__(
        self,
        pair: Callable[[], PemFiles | None],
        *,
        client_authorities: Path | None = None,
        min_version: str = "",
        ciphers: Sequence[str] | None = None,
        curves: Sequence[int] | None = None,
    ) -> None:
        if min_version not in VERSIONS:
            known = ", ".join(filter(None, VERSIONS))
            raise InvalidInput(f"expected one of {known}, got {min_version!r}", subject="tlsMinVersion")
        self._pair = pair
        self._authorities = client_authorities
        self._min_version = VERSIONS[min_version]
        self._ciphers = _openssl_ciphers(ciphers or ())
        self._curve = _openssl_curve(curves) if curves else None
        self._seen: Seen | None = None
        self._context: ssl.SSLContext | None = None
        self._trouble = ""
        self.authorities = b""

    def context(self) -> ssl.SSLContext:
        """Return the context. Raises InvalidInput naming the files if there has never been a usable pair."""
        paths: list[Path] = []
        try:
            pair = self._pair()
            if pair is None:
                raise FileNotFoundError("there is no serving certificate yet")
            paths = [pair.certificate, pair.key, *filter(None, [self._authorities])]
            seen = tuple(map(_stat, paths))
            if seen != self._seen or self._context is None:
                self._context = self._read(pair)
                self._seen = seen
        except (OSError, ValueError) as error:
            failure = InvalidInput(f"no usable TLS: {error}", subject=", ".join(map(str, paths)))
            self._log_failure(failure)
            if self._context is None:
                raise failure from error
        else:
            self._trouble = ""
        return self._context

    def _log_failure(self, failure: InvalidInput) -> None:
        """Log a problem once while it lasts, however many clients connect."""
        if str(failure) != self._trouble:
            self._trouble = str(failure)
            use = "no certificate is in use" if self._context is None else "the previous one stays in use"
            log.warning("%s; %s", failure, use)

    def _read(self, pair: PemFiles) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self._min_version
        context.set_ciphers(self._ciphers)
        if self._curve is not None:
            context.set_ecdh_curve(self._curve)
        # A client of TLS 1.2 could demand one handshake after another on a connection that counts once.
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.load_cert_chain(pair.certificate, pair.key)
        if self._authorities is not None:
            authorities = self._authorities.read_bytes()
            # Optional, because a client may have a token instead.
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(self._authorities)
            # Every connection holds these bytes: equal ones that were read again would be in memory many
            # times.
            if authorities != self.authorities:
                self.authorities = authorities
        return context


def _stat(path: Path) -> tuple[str, int, int, int]:
    """Return what changes when a file is written or replaced."""
    found = path.stat()
    return str(path), found.st_ino, found.st_mtime_ns, found.st_size


def _openssl_ciphers(names: Sequence[str]) -> str:
    unknown = [name for name in names if name not in CIPHERS and name not in TLS13]
    if unknown:
        raise InvalidInput(f"unknown: {', '.join(unknown)}", subject="tlsCipherSuites")
    return ":".join(CIPHERS[name] for name in names if name in CIPHERS) or USUAL_CIPHERS


def _openssl_curve(numbers: Sequence[int]) -> str:
    """Return OpenSSL's name of the first known curve."""
    subject = "tlsCurvePreferences"
    for at, number in enumerate(numbers):
        if not 0 < number <= LAST_CURVE:
            text = f"curve preference {number} is out of range (must be 1-{LAST_CURVE})"
            raise InvalidInput(text, subject=subject)
        if number in numbers[:at]:
            raise InvalidInput(f"duplicate curve preference {number}", subject=subject)
        if number not in CURVES:
            raise InvalidInput(f"curve preference {number} is not supported", subject=subject)
    usable = [CURVES[number] for number in numbers if _has_curve(CURVES[number])]
    if not usable:
        listed = ", ".join(map(str, numbers))
        raise InvalidInput(f"{ssl.OPENSSL_VERSION} has none of the curves {listed}", subject=subject)
    if len(numbers) > 1:
        log.info("tlsCurvePreferences: only the curve %s is offered", usable[0])
    return usable[0]


def _has_curve(name: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ecdh_curve(name)
    except ValueError:
        return False
    return True
