"""Runs credential provider plugins, and caches their responses.

A plugin receives a CredentialProviderRequest on standard input and prints a CredentialProviderResponse, which
determines how long it is cached, and whether for the image, its registry, or all images. Source: kubelet
v1.36, `kubelet.config.k8s.io/v1` CredentialProviderConfig, `credentialprovider.kubelet.k8s.io/v1`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from engine.api.documents import convert, parse_documents, read_text, unknown_fields
from engine.api.duration import Duration
from engine.api.encoding.digest import sha256
from engine.api.errors import InvalidInput, KubengineError, Refused
from engine.api.objects.cluster_objects import ServiceAccount
from engine.api.pod import Pod
from engine.api.resources import is_qualified_name
from engine.api.struct import PartlyShown, Struct, decode_hook, to_json
from engine.host.child import run_child
from engine.node.images.keyring import AccountSource, Credential, Credentials, matches

PROGRAM_SECONDS: Final = 60.0
MOST_BYTES: Final = 1 << 20
_VERSIONS: Final = tuple(f"credentialprovider.kubelet.k8s.io/{v}" for v in ("v1", "v1beta1", "v1alpha1"))
_CONFIG_VERSIONS: Final = tuple(f"kubelet.config.k8s.io/{v}" for v in ("v1", "v1beta1", "v1alpha1"))
_GLOBAL: Final = "<global>"
GATE: Final = "KubeletServiceAccountTokenForCredentialProviders"
TOKEN: Final = "Token"  # noqa: S105 - the name of a cache type
CACHE_TYPES: Final = ("ServiceAccount", TOKEN)
TOKEN_SECONDS: Final = 3600
"""The API server's default for requests without `expirationSeconds`."""

log = logging.getLogger("kubengine.images")


class EnvironmentVariable(Struct):
    name: str
    value: str


class TokenAttributes(Struct):
    """Describe a provider that receives a service account token of the pod. `cache_type` determines which
    pods may use a response: those of the `ServiceAccount`, or only the pod of the `Token`.
    """

    service_account_token_audience: str = ""
    cache_type: str = ""
    require_service_account: bool | None = None
    required_service_account_annotation_keys: list[str] | None = None
    optional_service_account_annotation_keys: list[str] | None = None


class CredentialProvider(Struct):
    """Describe one plugin. `name` is its file name; `match_images` has patterns of `keyring.matches`."""

    name: str
    match_images: list[str] | None = None
    default_cache_duration: Duration | None = None
    api_version: str = ""
    args: list[str] | None = None
    env: list[EnvironmentVariable] | None = None
    token_attributes: TokenAttributes | None = None


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


class TokenText(Protocol):
    @property
    def text(self) -> str: ...


class ServiceAccounts(Protocol):
    """Return the service accounts of pods, and tokens of them; every method raises `KubengineError`."""

    async def service_account(self, pod: Pod) -> ServiceAccount:
        """Return the pod's service account."""

    async def token(self, pod: Pod, audience: str, seconds: int) -> TokenText:
        """Return a token of the pod's service account."""


class _Shown(PartlyShown, frozen=True):
    """Hold the parts of a pod's service account that a plugin receives, and the cache key of its response."""

    HIDDEN = frozenset(("token",))
    token: str = ""
    annotations: tuple[tuple[str, str], ...] = ()
    account: AccountSource | None = None
    key: tuple[str, ...] = ()


class _Kept(msgspec.Struct, frozen=True):
    credentials: Credentials
    until: float


def load_programs(
    config: Path, directory: Path, clock: Callable[[], float], *, tokens: bool = True
) -> CredentialProviders:
    """Return the plugins of a configuration. `tokens` tells whether they may receive service account tokens
    (feature gate KubeletServiceAccountTokenForCredentialProviders).

    Raises `InvalidInput` for a plugin that is not in the directory, or that requires tokens although `tokens`
    is false.
    """
    providers = load_providers(config)
    for index, provider in enumerate(providers):
        if provider.token_attributes is not None and not tokens:
            text = f"tokenAttributes is not supported when {GATE} feature gate is disabled"
            raise InvalidInput(f"providers[{index}].tokenAttributes: {text}", subject=str(config))
    for provider in providers:
        if not os.access(directory / provider.name, os.X_OK):
            raise InvalidInput("no such program", subject=str(directory / provider.name))
    return CredentialProviders(providers, directory, clock)


def load_providers(path: Path) -> list[CredentialProvider]:
    """Load a file, or a directory's `*.json`, `*.yaml` and `*.yml` in the order of their names.

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
            raise InvalidInput(f"providers: {name!r} is the name of two providers", subject=str(path))
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
        wrong = _token_fault(provider.token_attributes, provider.api_version)
        return f"tokenAttributes{wrong}" if wrong else ""
    return ""


def _token_fault(wanted: TokenAttributes, version: str) -> str:
    required = wanted.required_service_account_annotation_keys or []
    optional = wanted.optional_service_account_annotation_keys or []
    if version != _VERSIONS[0]:
        return f": tokenAttributes is only supported for {_VERSIONS[0]} API version"
    if not wanted.service_account_token_audience:
        return ".serviceAccountTokenAudience: expected an audience"
    if wanted.require_service_account is None:
        return ".requireServiceAccount: expected true or false"
    if wanted.cache_type not in CACHE_TYPES:
        return f".cacheType: expected one of {', '.join(CACHE_TYPES)}; got {wanted.cache_type!r}"
    if required and not wanted.require_service_account:
        text = "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set"
        return f".requiredServiceAccountAnnotationKeys: {text}"
    for kind, keys in (("required", required), ("optional", optional)):
        for key in keys:
            if not is_qualified_name(key.lower()) or keys.count(key) > 1:
                what = "given twice" if keys.count(key) > 1 else "not the name of an annotation"
                return f".{kind}ServiceAccountAnnotationKeys: {key!r} is {what}"
    both = sorted(set(required).intersection(optional))
    if both:
        return f": annotation keys cannot be both required and optional: {', '.join(both)}"
    return ""


class CredentialProviders:
    """Run the credential provider plugins of a node, which are in `directory`. `clock` returns Unix seconds.

    Each plugin runs for one image at a time. Pods that need the same response at the same time share one
    call.
    """

    def __init__(
        self, providers: Sequence[CredentialProvider], directory: Path, clock: Callable[[], float]
    ) -> None:
        self._programs = [_Program(provider, directory, clock) for provider in providers]

    async def credentials(
        self, repository: str, pod: Pod | None = None, accounts: ServiceAccounts | None = None
    ) -> list[Credentials]:
        """Return the credentials of each plugin that matches the repository; failures are logged.

        The image is for `pod`; its service account is read from `accounts`.
        """
        found = []
        for program in self._programs:
            try:
                found.append(await program.credentials(repository, pod or Pod(), accounts))
            except KubengineError as error:
                log.error("no credentials for %s: %s", repository, error)
        return found


class _Program:
    def __init__(self, provider: CredentialProvider, directory: Path, clock: Callable[[], float]) -> None:
        self._provider = provider
        self._path = directory / provider.name
        self._clock = clock
        self._kept: dict[tuple[str, ...], _Kept] = {}
        self._turn = asyncio.Lock()

    async def credentials(self, image: str, pod: Pod, accounts: ServiceAccounts | None) -> Credentials:
        """Raise `KubengineError`."""
        if not any(matches(pattern, image) for pattern in self._provider.match_images or []):
            return {}
        shown = await self._shown(pod, accounts)
        if shown is None:
            return {}
        # A plugin may call a cloud service: pods that start at the same time must share one call.
        async with self._turn:
            self._kept = {key: kept for key, kept in self._kept.items() if self._clock() <= kept.until}
            # From the narrowest to the widest key: a response's `cacheKeyType` decides where it is stored.
            for place in (image, _registry(image), _GLOBAL):
                kept = self._kept.get((place, *shown.key))
                if kept is not None:
                    return kept.credentials
            response = await self._ask(image, shown)
            places = {"Image": image, "Registry": _registry(image), "Global": _GLOBAL}
            if response.cache_key_type not in places:
                text = f"expected one of {', '.join(places)} as cacheKeyType"
                raise Refused(f"{text}, got {response.cache_key_type[:64]!r}", subject=str(self._path))
            credentials = {
                where: Credential(one.username, one.password, account=shown.account)
                for where, one in (response.auth or {}).items()
            }
            duration = response.cache_duration
            if duration is None:
                duration = self._provider.default_cache_duration
            # 0 disables caching.
            if duration:
                until = self._clock() + float(duration)
                self._kept[places[response.cache_key_type], *shown.key] = _Kept(credentials, until)
            return credentials

    async def _shown(self, pod: Pod, accounts: ServiceAccounts | None) -> _Shown | None:
        """Return the parts of the pod's service account for the plugin; None if the plugin does not serve the
        pod.

        Raises `KubengineError`.
        """
        wanted = self._provider.token_attributes
        if wanted is None:
            return _Shown()
        name = pod.spec.service_account_name
        if not name or accounts is None:
            return None if wanted.require_service_account else _Shown()
        meta = (await accounts.service_account(pod)).metadata
        given = meta.annotations or {}
        required = wanted.required_service_account_annotation_keys or []
        if any(key not in given for key in required):
            return None
        keys = (*required, *(wanted.optional_service_account_annotation_keys or ()))
        annotations = tuple(sorted((key, given[key]) for key in keys if key in given))
        token = (await accounts.token(pod, wanted.service_account_token_audience, TOKEN_SECONDS)).text
        account = AccountSource(pod.metadata.namespace, name, meta.uid)
        key: tuple[str, ...] = (account.namespace, name, meta.uid, repr(annotations))
        if wanted.cache_type == TOKEN:
            # The hash, so that the cache does not contain the tokens themselves.
            key = (*key, pod.uid, sha256(token.encode()))
        return _Shown(token, annotations, account, key)

    async def _ask(self, image: str, shown: _Shown) -> _Response:
        provider, subject = self._provider, str(self._path)
        request: dict[str, Any] = {
            "apiVersion": provider.api_version,
            "kind": "CredentialProviderRequest",
            "image": image,
        }
        if shown.token:
            request["serviceAccountToken"] = shown.token
        if shown.annotations:
            request["serviceAccountAnnotations"] = dict(shown.annotations)
        printed = await run_child(
            [subject, *(provider.args or [])],
            seconds=PROGRAM_SECONDS,
            most=MOST_BYTES,
            subject=subject,
            stdin=to_json(request),
            environment={**os.environ, **{one.name: one.value for one in provider.env or []}},
        )
        if printed.code != 0:
            raise Refused(f"exit status {printed.code}: {printed.errors[-500:]}", subject=subject)
        try:
            response = _responses.decode(printed.out)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Refused("its output is not a CredentialProviderResponse", subject=subject) from None
        if response.api_version != provider.api_version:
            text = f"expected a response of {provider.api_version}"
            raise Refused(f"{text}, got {response.api_version[:64]!r}", subject=subject)
        self._check_echo(response, shown.token)
        return response

    def _check_echo(self, response: _Response, token: str) -> None:
        """Raise `Refused` if the response's password is the token itself, which the cache would keep beyond
        its expiry.
        """
        wanted = self._provider.token_attributes
        if not token or wanted is None or wanted.cache_type == TOKEN:
            return
        if any(one.password == token for one in (response.auth or {}).values()):
            text = "it returned the service account token as the password, which needs cacheType: Token"
            raise Refused(text, subject=str(self._path))


def _registry(image: str) -> str:
    return image.split("/", maxsplit=1)[0]
