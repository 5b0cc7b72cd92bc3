"""Reads a kubeconfig: the current context's server and user, with absolute paths (client-go v1.36)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from engine.api.documents import parse_documents, read_text
from engine.api.errors import InvalidInput
from engine.transport.pool import Server


class ExecConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Describe a program that prints an ExecCredential."""

    api_version: str = ""
    command: str = ""
    args: list[str] | None = None
    env: list[dict[str, str]] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False


class KubeconfigCluster(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class KubeconfigUser(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    exec: ExecConfig | None = None


class _Context(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str = ""
    user: str = ""


class _Named(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    cluster: KubeconfigCluster | None = None
    user: KubeconfigUser | None = None
    context: _Context | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    current_context: str = ""
    clusters: list[_Named] | None = None
    users: list[_Named] | None = None
    contexts: list[_Named] | None = None


class Kubeconfig(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the current context; paths are absolute, data is PEM."""

    path: Path
    server: Server
    cluster: KubeconfigCluster
    user: KubeconfigUser

    @property
    def prefix(self) -> str:
        """Return the server URL's path, which precedes `/api`, or ''."""
        return urlsplit(self.cluster.server).path.rstrip("/")


def load_kubeconfig(path: Path) -> Kubeconfig:
    """Read a kubeconfig. Raises InvalidInput naming the file and the field."""
    return parse_kubeconfig(read_text(path), path)


def load_kubeconfigs(paths: Sequence[Path], context: str = "") -> Kubeconfig:
    """Merge several kubeconfigs, at least one, as kubectl does: the first file that has a name defines it.

    An empty `context` is the first current context. Raises InvalidInput naming the file and the field.
    """
    return _resolved([(path, _parsed(read_text(path), path)) for path in paths], context)


def parse_kubeconfig(text: bytes, path: Path) -> Kubeconfig:
    """Parse a kubeconfig; relative paths start at the directory of `path`."""
    return _resolved([(path, _parsed(text, path))], "")


def _parsed(text: bytes, path: Path) -> _File:
    documents = parse_documents(text, str(path))
    try:
        return msgspec.convert(documents[0] if documents else {}, _File)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error), subject=str(path)) from None


def _resolved(files: list[tuple[Path, _File]], context: str) -> Kubeconfig:
    first = files[0][0]
    current = context or next((file.current_context for _, file in files if file.current_context), "")
    _, found = _named([(path, file.contexts) for path, file in files], current, "contexts")
    chosen = found.context or _Context()
    path, found = _named([(path, file.clusters) for path, file in files], chosen.cluster, "clusters")
    cluster = found.cluster or KubeconfigCluster()
    server = _server(cluster, path)
    cluster = _absolute(cluster, path, "certificate_authority")
    user = KubeconfigUser()
    if chosen.user:
        path, found = _named([(path, file.users) for path, file in files], chosen.user, "users")
        user = _absolute(found.user or user, path, "client_certificate", "client_key", "token_file")
    return Kubeconfig(path=first, server=server, cluster=cluster, user=user)


def pem(data: str, field: str, subject: str) -> bytes:
    """Decode a `…-data` field. Raises InvalidInput if it is not base64."""
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise InvalidInput(f"{field}: not base64: {error}", subject=subject) from None


def _named(lists: list[tuple[Path, list[_Named] | None]], name: str, field: str) -> tuple[Path, _Named]:
    """Return the item with this name, and the file that it is in."""
    for path, items in lists:
        for item in items or ():
            if item.name == name:
                return path, item
    known = ", ".join(sorted(item.name for _, items in lists for item in items or ()))
    raise InvalidInput(
        f"{field}: there is no {name!r}{f'; known: {known}' if known else ''}",
        subject=", ".join(str(path) for path, _ in lists),
    )


def _absolute(section: Any, path: Path, *fields: str) -> Any:
    named = {field: getattr(section, field) for field in fields}
    return msgspec.structs.replace(
        section, **{field: str(path.parent / text) if text else "" for field, text in named.items()}
    )


def _server(cluster: KubeconfigCluster, path: Path) -> Server:
    url, proxy = urlsplit(cluster.server), None
    try:
        port = url.port or 443
        if url.scheme != "https" or not url.hostname:
            raise ValueError("expected https://HOST[:PORT]")
        if cluster.proxy_url:
            through = urlsplit(cluster.proxy_url)
            if through.scheme != "http" or not through.hostname:
                raise ValueError(f"expected http://HOST:PORT as proxy-url, got {cluster.proxy_url!r}")
            proxy = through.hostname, through.port or 80
    except ValueError as error:
        raise InvalidInput(f"clusters: server {cluster.server!r}: {error}", subject=str(path)) from None
    return Server(url.hostname, port, cluster.tls_server_name, proxy)
