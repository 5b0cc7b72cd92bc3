"""Loads the node's credentials for the API server, and reloads them when they change.

Token and certificate files are read every minute, and an exec plugin is called when its credentials expire
(client-go v1.36). After a 401, everything is reloaded at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from engine.api.errors import InvalidInput, KubengineError, Refused
from engine.cluster.kubeconfig import ExecConfig, Kubeconfig, pem
from engine.host.child import run_child
from engine.transport.tls import ClientTLS

READ_AGAIN_SECONDS = 60.0
EXEC_SECONDS = 60.0
MOST = 1 << 20

log = logging.getLogger("kubengine.cluster")


class _ExecStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = ""
    status: _ExecStatus | None = None


class Credentials:
    """Provide `headers()` and `context()` for the next request. The listener is called when the TLS
    credentials change, which makes existing connections outdated.

    `pair()` is a file whose certificate and key take precedence over the kubeconfig's.
    """

    def __init__(
        self,
        config: Kubeconfig,
        *,
        clock: Callable[[], float],
        pair: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._pair = pair
        self._changed: Callable[[], None] = lambda: None
        self.reading = 0
        self._tls: ClientTLS | None = None
        self._context: ssl.SSLContext | None = None
        self._token = ""
        self._read_at = float("-inf")
        self._expires = float("inf")
        self._reading = asyncio.Lock()

    def on_change(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def use(self, config: Kubeconfig) -> None:
        """Continue as another user of the same server."""
        self._config = config
        self.outdated()

    def outdated(self) -> None:
        """Read everything again before the next request."""
        self._read_at = float("-inf")

    async def refresh(self, *, refused: int | None = None) -> None:
        """Reload credentials if due; `refused` is the number of the `reading` that got a 401.

        If it cannot be read, the known credentials stay in use, unless they were refused. Raises
        InvalidInput or Refused naming the file.
        """
        if not self._is_due() and refused != self.reading:
            return
        async with self._reading:
            # Many requests may get a 401 at once; the first of them reloads the files for all.
            if not self._is_due() and refused != self.reading:
                return
            try:
                tls, token, expires = await self._read()
                context = self._context if tls == self._tls else tls.context(str(self._config.path))
            except KubengineError as error:
                if self._context is None or refused == self.reading:
                    raise
                # So that an unreadable file is retried once a minute, and not for each request.
                self._read_at = self._clock()
                log.warning("cannot reload the credentials: %s", error)
                return
            before, self._tls, self._context = self._tls, tls, context
            self._token, self._expires, self._read_at = token, expires, self._clock()
            self.reading += 1
            # A connection uses one certificate for its lifetime, while a new token needs no new connection.
            if before is not None and before != tls:
                self._changed()

    def _is_due(self) -> bool:
        now = self._clock()
        fresh = 0 <= now - self._read_at < READ_AGAIN_SECONDS  # a clock set back counts as not fresh
        return self._context is None or not fresh or now >= self._expires

    def headers(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self._token}")] if self._token else []

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a new connection; call `refresh` before."""
        assert self._context is not None
        return self._context

    async def _read(self) -> tuple[ClientTLS, str, float]:
        user, cluster, subject = self._config.user, self._config.cluster, str(self._config.path)
        expires = float("inf")
        token = user.token
        pair = self._pair()
        if pair is not None:
            certificate = key = _text(str(pair))
        else:
            certificate, key = client_pair(self._config)
        if user.token_file:
            token = _text(user.token_file).decode("ascii", "replace").strip()
        elif user.exec is not None and not (token or certificate):
            status = await run_exec_plugin(user.exec, self._config)
            token = status.token
            certificate, key = status.client_certificate_data.encode(), status.client_key_data.encode()
            if status.expiration_timestamp is not None:
                expires = status.expiration_timestamp.timestamp()
        tls = ClientTLS(
            _either(
                cluster.certificate_authority,
                cluster.certificate_authority_data,
                "certificate-authority",
                subject,
            ),
            certificate,
            key,
            cluster.insecure_skip_tls_verify,
        )
        return tls, token, expires


async def run_exec_plugin(plugin: ExecConfig, config: Kubeconfig) -> _ExecStatus:
    """Run the plugin and return its ExecCredential. Raises Refused with its error text if it fails."""
    request: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        cluster = config.cluster
        request["cluster"] = {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "certificate-authority-data": cluster.certificate_authority_data,
        }
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": request}
    named = {each.get("name", ""): each.get("value", "") for each in plugin.env or ()}
    environment = os.environ | named | {"KUBERNETES_EXEC_INFO": json.dumps(info)}
    command = plugin.command
    # A relative path is relative to the kubeconfig, as in client-go.
    if "/" in command:
        command = str(config.path.parent / command)
    subject = f"{config.path}: exec {plugin.command}"
    try:
        printed = await run_child(
            [command, *(plugin.args or ())],
            environment=environment,
            seconds=EXEC_SECONDS,
            most=MOST,
            subject=subject,
        )
    except Refused as error:
        if error.errno is None or not plugin.install_hint:
            raise
        raise Refused(f"{error.message}; {plugin.install_hint}", subject=subject) from error
    if printed.code:
        raise Refused(f"exit code {printed.code}: {printed.errors[-300:]}", subject=subject)
    try:
        credential = msgspec.json.decode(printed.out, type=_ExecCredential)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(f"not an ExecCredential: {error}", subject=subject) from None
    if credential.status is None or not (
        credential.status.token or credential.status.client_certificate_data
    ):
        raise Refused("the ExecCredential has neither a token nor a certificate", subject=subject)
    return credential.status


def client_pair(config: Kubeconfig) -> tuple[bytes, bytes]:
    """Return the kubeconfig's client certificate and key, empty if absent. Raises InvalidInput."""
    user, subject = config.user, str(config.path)
    return (
        _either(user.client_certificate, user.client_certificate_data, "client-certificate", subject),
        _either(user.client_key, user.client_key_data, "client-key", subject),
    )


def _either(path: str, data: str, field: str, subject: str) -> bytes:
    if data:
        return pem(data, f"{field}-data", subject)
    return _text(path) if path else b""


def _text(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MOST)
    except OSError as error:
        raise InvalidInput(error.strerror or str(error), subject=path) from error
