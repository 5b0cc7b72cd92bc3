"""Finds registry credentials by the name of an image's repository. Pure.

Source: kubelet v1.36 (`pkg/credentialprovider`): more specific entries come first, and all matches are
tried.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

import msgspec

from engine.api.encoding.digest import sha256
from engine.api.encoding.go_text import go_json
from engine.api.errors import InvalidInput
from engine.api.struct import PartlyShown

DEFAULT_REGISTRY: Final = "index.docker.io"


class SecretSource(msgspec.Struct, frozen=True, order=True):
    """Identify the pull secret of a credential."""

    namespace: str
    name: str
    uid: str


class AccountSource(msgspec.Struct, frozen=True, order=True):
    """Identify the service account whose token was used to request a credential."""

    namespace: str
    name: str
    uid: str


class Credential(PartlyShown, frozen=True):
    """Hold one credential: of a pull secret (`source`), of a service account (`account`), or of the node,
    whose credentials every pod may use.
    """

    HIDDEN = frozenset(("username", "password", "email"))
    username: str
    password: str
    email: str = ""
    source: SecretSource | None = None
    account: AccountSource | None = None

    @property
    def digest(self) -> str:
        """Return the digest that identifies the credential in records: SHA-256 of its JSON as a kubelet
        writes it.
        """
        named = {"username": self.username, "password": self.password, "email": self.email}
        given = {name: value for name, value in named.items() if value}
        return sha256(go_json(given))


class _Entry(msgspec.Struct):
    username: str = ""
    password: str = ""
    email: str = ""
    auth: str = ""


class _Config(msgspec.Struct):
    auths: dict[str, _Entry] = {}


Credentials = Mapping[str, Credential]
"""Credentials by registry, or by registry and path."""

_configs: Final = msgspec.json.Decoder(_Config)
_legacy: Final = msgspec.json.Decoder(dict[str, _Entry])


def docker_config(data: bytes, source: SecretSource | None = None, *, legacy: bool = False) -> Credentials:
    """Parse a `config.json`, or with `legacy` a `.dockercfg`. Raises `InvalidInput`, which never quotes the
    content.
    """
    try:
        entries = _legacy.decode(data) if legacy else _configs.decode(data).auths
        return {where: _credential(entry, source) for where, entry in entries.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError, RecursionError):
        raise InvalidInput("expected registries with username and password, or auth") from None


def _credential(entry: _Entry, source: SecretSource | None) -> Credential:
    username, password = entry.username, entry.password
    if entry.auth:
        padded = entry.auth.strip().rstrip("=")
        padded += "=" * (-len(padded) % 4)
        username, colon, password = base64.b64decode(padded, validate=True).decode().partition(":")
        if not colon:
            raise ValueError("auth without a colon")
    return Credential(username, password, entry.email, source)


class Keyring:
    """Combine several sets of credentials; those that are added first take precedence."""

    def __init__(self) -> None:
        self._known: dict[str, list[Credential]] = {}

    def add(self, credentials: Credentials) -> None:
        for where, credential in credentials.items():
            place = _place(where)
            if place:
                self._known.setdefault(place, []).append(credential)

    def lookup(self, repository: str) -> list[Credential]:
        """Return all credentials for a repository, given by its full name without tag or digest."""
        fitting = [place for place in sorted(self._known, reverse=True) if matches(place, repository)]
        found = [credential for place in fitting for credential in self._known[place]]
        if not found and repository.split("/", maxsplit=1)[0] in ("docker.io", DEFAULT_REGISTRY):
            return self._known.get(DEFAULT_REGISTRY, [])
        return found


def matches(pattern: str, target: str) -> bool:
    """Tell whether a name matches a pattern.

    The port must be equal, the host must have as many labels, each of which must match the pattern's (`*`
    matches any text in one label), and the path must begin with the pattern's.
    """
    wanted, given = _split(pattern), _split(target)
    if wanted is None or given is None:
        return False
    (labels, port, path), (its_labels, its_port, its_path) = wanted, given
    return (
        port == its_port
        and len(labels) == len(its_labels)
        and its_path.startswith(path)
        and all(fnmatchcase(its, label) for its, label in zip(its_labels, labels, strict=True))
    )


def _place(where: str) -> str:
    """Split into host and path; `/v1/` and `/v2/` mean the registry itself. Returns '' for anything else."""
    text = where if where.startswith(("https://", "http://")) else f"https://{where}"
    try:
        url = urlsplit(text)
    except ValueError:
        return ""
    path = url.path[3:] if url.path.startswith(("/v1/", "/v2/")) else url.path
    return url.netloc + (path if path != "/" else "")


def _split(name: str) -> tuple[list[str], str, str] | None:
    try:
        url = urlsplit(f"https://{name}")
    except ValueError:
        return None
    host, colon, port = url.netloc.rpartition(":")
    if not colon or "]" in port:
        host, port = url.netloc, ""
    return host.strip("[]").split("."), port, url.path


def keyring(sets: Iterable[Credentials]) -> Keyring:
    made = Keyring()
    for credentials in sets:
        made.add(credentials)
    return made
