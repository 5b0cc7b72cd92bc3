"""Runs credential provider plugins: which plugin for which image, and how long its answer stays valid.

A plugin receives a CredentialProviderRequest on standard input and prints a CredentialProviderResponse. The
answer is cached for as long as it says, for the image, its registry, or all images. Source: kubelet v1.36,
`kubelet.config.k8s.io/v1` CredentialProviderConfig, `credentialprovider.kubelet.k8s.io/v1`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.api.documents import convert, parse_documents, read_text, unknown_fields
from engine.api.duration import Duration
from engine.api.errors import InvalidInput, KubengineError, Refused
from engine.api.struct import Struct, decode_hook, to_json
from engine.host.child import run_child
from engine.node.images.keyring import Credential, Credentials, matches

PROGRAM_SECONDS: Final = 60.0
MOST_BYTES: Final = 1 << 20
_VERSIONS: Final = tuple(f"credentialprovider.kubelet.k8s.io/{v}" for v in ("v1", "v1beta1", "v1alpha1"))
_CONFIG_VERSIONS: Final = tuple(f"kubelet.config.k8s.io/{v}" for v in ("v1", "v1beta1", "v1alpha1"))
_GLOBAL: Final = "<global>"

log = logging.getLogger("kubengine.images")


class EnvironmentVariable(Struct):
    name: str
    value: str


class CredentialProvider(Struct):
    """One program, by the name of its file; `match_images` as `keyring.matches` reads them."""

    name: str
    match_images: list[str] | None = None
    default_cache_duration: Duration | None = None
    api_version: str = ""
    args: list[str] | None = None
    env: list[EnvironmentVariable] | None = None
    token_attributes: dict[str, Any] | None = None


class CredentialProviderConfig(Struct):
    api_version: str
    kind: str
    providers: list[CredentialProvider] | None = None


class _Auth(Struct):
    username: str = ""
    password: str = ""


class _Response(Struct):
    api_version: str = ""
    kind: str = ""
    cache_key_type: str = ""
    cache_duration: Duration | None = None
    auth: dict[str, _Auth] | None = None


_responses: Final = msgspec.json.Decoder(_Response, dec_hook=decode_hook)


@dataclass(frozen=True, slots=True)
class _Kept:
    credentials: Credentials
    until: float


def load_programs(config: Path, directory: Path, clock: Callable[[], float]) -> CredentialProviders:
    """The programs that a configuration names. Raises `InvalidInput` for one that is not in the directory."""
    providers = load_providers(config)
    for provider in providers:
        if not os.access(directory / provider.name, os.X_OK):
            raise InvalidInput("no such program", subject=str(directory / provider.name))
    return CredentialProviders(providers, directory, clock)


def load_providers(path: Path) -> list[CredentialProvider]:
    """From a file, or a directory's `*.json`, `*.yaml` and `*.yml` in the order of their names.

    Raises `InvalidInput` naming the file and the field.
    """
    files = [path]
    if path.is_dir():
        kinds = (".json", ".yaml", ".yml")
        files = sorted(file for file in path.iterdir() if file.suffix in kinds and file.is_file())
        if not files:
            raise InvalidInput("no configuration files found in directory", subject=str(path))
    providers = [provider for file in files for provider in _read(file)]
    if not providers:
        raise InvalidInput("providers: expected at least one", subject=str(path))
    names = [provider.name for provider in providers]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"providers: {name!r} is the name of two", subject=str(path))
    return providers


def _read(file: Path) -> list[CredentialProvider]:
    documents = parse_documents(read_text(file), str(file))
    if len(documents) != 1:
        raise InvalidInput("expected one CredentialProviderConfig", subject=str(file))
    for unknown in unknown_fields(documents[0], CredentialProviderConfig):
        raise InvalidInput(f"{unknown}: unknown field", subject=str(file))
    config = convert(documents[0], CredentialProviderConfig, str(file))
    if config.kind != "CredentialProviderConfig" or config.api_version not in _CONFIG_VERSIONS:
        text = f"expected a CredentialProviderConfig of {_CONFIG_VERSIONS[0]}"
        raise InvalidInput(f"{text}, got {config.kind!r} of {config.api_version!r}", subject=str(file))
    for index, provider in enumerate(config.providers or []):
        wrong = _fault(provider)
        if wrong:
            raise InvalidInput(f"providers[{index}].{wrong}", subject=str(file))
    return config.providers or []


def _fault(provider: CredentialProvider) -> str:
    if not provider.name or provider.name in (".", "..") or "/" in provider.name or " " in provider.name:
        return f"name: expected the name of a file, got {provider.name!r}"
    if provider.api_version not in _VERSIONS:
        return f"apiVersion: expected one of {', '.join(_VERSIONS)}; got {provider.api_version!r}"
    if not provider.match_images:
        return "matchImages: expected at least one"
    if provider.default_cache_duration is None or provider.default_cache_duration < 0:
        return "defaultCacheDuration: expected a duration of 0 or more"
    if provider.token_attributes is not None:
        return "tokenAttributes: not supported by this node"
    return ""


class CredentialProviders:
    """All programs of a node, in `directory`. `clock` gives Unix seconds.

    A program is asked for one image at a time; what several need at once is asked once.
    """

    def __init__(
        self, providers: Sequence[CredentialProvider], directory: Path, clock: Callable[[], float]
    ) -> None:
        self._programs = [_Program(provider, directory, clock) for provider in providers]

    async def credentials(self, repository: str) -> list[Credentials]:
        """What each program that is for a repository says; one that fails is logged and says nothing."""
        found = []
        for program in self._programs:
            try:
                found.append(await program.credentials(repository))
            except KubengineError as error:
                log.error("credentials for %s: %s", repository, error)
        return found


class _Program:
    def __init__(self, provider: CredentialProvider, directory: Path, clock: Callable[[], float]) -> None:
        self._provider = provider
        self._path = directory / provider.name
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._turn = asyncio.Lock()

    async def credentials(self, image: str) -> Credentials:
        """Raises `Refused`."""
        if not any(matches(pattern, image) for pattern in self._provider.match_images or []):
            return {}
        async with self._turn:
            self._kept = {key: kept for key, kept in self._kept.items() if self._clock() <= kept.until}
            for key in (image, _registry(image), _GLOBAL):
                if key in self._kept:
                    return self._kept[key].credentials
            response = await self._ask(image)
            keys = {"Image": image, "Registry": _registry(image), "Global": _GLOBAL}
            if response.cache_key_type not in keys:
                text = f"expected one of {', '.join(keys)} as cacheKeyType"
                raise Refused(f"{text}, got {response.cache_key_type[:64]!r}", subject=str(self._path))
            auth = response.auth or {}
            credentials = {where: Credential(one.username, one.password) for where, one in auth.items()}
            duration = response.cache_duration
            if duration is None:
                duration = self._provider.default_cache_duration
            if duration:
                until = self._clock() + float(duration)
                self._kept[keys[response.cache_key_type]] = _Kept(credentials, until)
            return credentials

    async def _ask(self, image: str) -> _Response:
        provider, subject = self._provider, str(self._path)
        request = {"apiVersion": provider.api_version, "kind": "CredentialProviderRequest", "image": image}
        printed = await run_child(
            [subject, *(provider.args or [])],
            seconds=PROGRAM_SECONDS,
            most=MOST_BYTES,
            subject=subject,
            stdin=to_json(request),
            environment={**os.environ, **{one.name: one.value for one in provider.env or []}},
        )
        if printed.code != 0:
            raise Refused(f"exit status {printed.code}: {printed.said[-500:]}", subject=subject)
        try:
            response = _responses.decode(printed.out)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Refused("prints no CredentialProviderResponse", subject=subject) from None
        if response.api_version != provider.api_version:
            text = f"expected an answer of {provider.api_version}"
            raise Refused(f"{text}, got {response.api_version[:64]!r}", subject=subject)
        return response


def _registry(image: str) -> str:
    return image.split("/", maxsplit=1)[0]
