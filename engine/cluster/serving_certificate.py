"""The certificate that the node's own server shows (kubelet v1.36: `InitializeTLS`, kubelet-serving).

    serving = ServingCertificate(config, directory, host_name, clock=time.time)
    serving.on_change(reload)
    await serving.start()
    serving.pair              # files to load, None while there is no certificate

Whose it is: `tlsCertFile` and `tlsPrivateKeyFile` where the configuration names them; with
`serverTLSBootstrap` what the cluster signs, kept as `kubelet-server-current.pem`; else `kubelet.crt` and
`kubelet.key`, made here when they are not there. Loads nothing of TLS: whoever serves does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.api.config import KubeletConfiguration
from engine.api.errors import KubengineError, Refused
from engine.cluster.certificate_store import CertificateStore
from engine.cluster.openssl import new_key, self_signed
from engine.host.files import replace_file
from engine.host.inotify import Watch

PREFIX: Final = "kubelet-server"
SELF_SIGNED_DAYS: Final = 365
MOUNTED_FILES: Final = "..data"
"""The name by which the files of a mounted volume change all at once."""
AFTER_A_CHANGE: Final = 0.2
"""Seconds to wait after a file has changed: a certificate and its key come one after the other."""

log = logging.getLogger("kubengine.cluster")


@dataclass(frozen=True, slots=True)
class ServingPair:
    """Files in PEM; both may be one."""

    certificate: Path
    key: Path


class ServingCertificate:
    """`directory` is the kubelet's `--cert-dir`. `pair` may be other files after a change, and the same files
    may have another content."""

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
        self._listeners: list[Callable[[], None]] = []
        self._watch: Watch | None = None
        self._soon: asyncio.TimerHandle | None = None

    @property
    def pair(self) -> ServingPair | None:
        """The files to serve with now."""
        if self._signed and (path := self.store.current()) is not None:
            return ServingPair(path, path)
        pair = self._named or (None if self._signed else self._own)
        return pair if pair is not None and pair.certificate.exists() and pair.key.exists() else None

    def on_change(self, changed: Callable[[], None]) -> None:
        """`changed` is called, on the loop, when the files are others or have another content."""
        self._listeners.append(changed)

    async def start(self) -> None:
        """Make what is not there, then follow the files. What fails is logged: there is no `pair` then."""
        if self._signed:
            return
        if self._named is None and self.pair is None:
            try:
                await self._make()
            except KubengineError as error:
                log.error("no certificate to serve with: %s", error)
        pair = self._named or self._own
        try:
            self._watch = Watch(lambda _mask, _directory, name: self._file_changed(name))
            for directory in {pair.certificate.parent, pair.key.parent}:
                self._watch.add(directory)
        except Refused as error:
            log.warning("a new serving certificate is not noticed: %s", error)

    async def stop(self) -> None:
        """May be called before `start`, and twice."""
        if self._soon is not None:
            self._soon.cancel()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def changed(self) -> None:
        """Tell everybody."""
        self._soon = None
        for listener in self._listeners:
            listener()

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

    def _file_changed(self, name: str) -> None:
        pair = self._named or self._own
        if name in ("", pair.certificate.name, pair.key.name, MOUNTED_FILES):
            if self._soon is not None:
                self._soon.cancel()
            self._soon = asyncio.get_running_loop().call_later(AFTER_A_CHANGE, self.changed)
