"""Chooses the serving certificate of the node (kubelet v1.36: `InitializeTLS`, kubelet-serving).

    serving = ServingCertificate(config, directory, host_name, clock=time.time)
    await serving.start()
    serving.pair              # files to load, None while there is no certificate

The certificate is `tlsCertFile` and `tlsPrivateKeyFile` if the configuration names them; with
`serverTLSBootstrap` it is signed by the cluster and stored as `kubelet-server-current.pem`; otherwise it is
`kubelet.crt` and `kubelet.key`, created here if missing. The server loads the files, and reloads them when
they change; this module does not import TLS.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.errors import KubengineError, Refused
from engine.cluster.certificates.openssl import new_key, self_signed
from engine.cluster.certificates.store import CertificateStore
from engine.host.files import replace_file

PREFIX: Final = "kubelet-server"
SELF_SIGNED_DAYS: Final = 365

log = logging.getLogger("kubengine.cluster")


class ServingPair(msgspec.Struct, frozen=True):
    """Name the PEM files of certificate and key; both may be the same file."""

    certificate: Path
    key: Path


class ServingCertificate:
    """Choose the serving certificate; `directory` is the kubelet's `--cert-dir`.

    After a change, `pair` may name other files, or the same files with new content.
    """

    def __init__(
        self, config: KubeletConfiguration, directory: Path, host_name: str, *, clock: Callable[[], float]
    ) -> None:
        self.store = CertificateStore(directory, PREFIX)
        self._named = (
            ServingPair(Path(config.tls_cert_file), Path(config.tls_private_key_file))
            if config.tls_cert_file and config.tls_private_key_file
            else None
        )
        self._signed = config.server_tls_bootstrap
        self._own = ServingPair(directory / "kubelet.crt", directory / "kubelet.key")
        self._host_name = host_name
        self._clock = clock

    @property
    def pair(self) -> ServingPair | None:
        """Return the files to serve with now."""
        if self._signed and (path := self.store.current()) is not None:
            return ServingPair(path, path)
        pair = self._named or (None if self._signed else self._own)
        return pair if pair is not None and pair.certificate.exists() and pair.key.exists() else None

    async def start(self) -> None:
        """Create missing files. A failure is logged, and `pair` is None then."""
        if self._signed or self._named is not None or self.pair is not None:
            return
        try:
            await self._make()
        except KubengineError as error:
            log.error("no certificate to serve with: %s", error)

    async def _make(self) -> None:
        key = await new_key()
        host = self._host_name
        certificate = await self_signed(key, f"{host}@{self._clock():.0f}", [host], SELF_SIGNED_DAYS)
        try:
            self._own.key.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(error.strerror or str(error), subject=str(error.filename)) from error
        replace_file(self._own.key, key)
        replace_file(self._own.certificate, certificate, mode=0o644)
