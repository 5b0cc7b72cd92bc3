"""Decides whether a pod may use an image that is present, and with which credentials an image is pulled.

Source: kubelet v1.36 (KubeletEnsureSecretPulledImages, `pkg/kubelet/images`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, KubengineError, Refused
from engine.api.events import WARNING, EventRecorder
from engine.api.objects.cluster_objects import Secret
from engine.api.pod import Pod
from engine.cri.client import RuntimeClient
from engine.metrics import Registry
from engine.node.images.docker_config import NodeCredentials
from engine.node.images.keyring import Credential, Credentials, SecretSource, docker_config, keyring
from engine.node.images.providers import ServiceAccounts
from engine.node.images.pull_records import (
    MOST_SECRETS,
    PullCredentials,
    PullRecords,
    secret_of,
    without_tag,
)

_LABEL: Final = "[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]"
_HOST: Final = rf"(?:(?:{_LABEL})(?:\.(?:{_LABEL}))*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_DIGEST: Final = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_REFERENCE: Final = re.compile(
    rf"(?:{_HOST}/)?(?P<path>{_PART}(?:/{_PART})*)(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@(?P<digest>{_DIGEST}))?"
)
_ID: Final = re.compile("[a-f0-9]{64}")
_DIGEST_LENGTHS: Final = {"sha256": 64, "sha384": 96, "sha512": 128}
_LONGEST_PATH: Final = 255
NEVER: Final = "NeverVerify"
PRELOADED: Final = "NeverVerifyPreloadedImages"
ALLOWED: Final = "NeverVerifyAllowlistedImages"
ALWAYS: Final = "AlwaysVerify"
_JSON_TYPE, _JSON_KEY = "kubernetes.io/dockerconfigjson", ".dockerconfigjson"
_LEGACY_TYPE, _LEGACY_KEY = "kubernetes.io/dockercfg", ".dockercfg"
log = logging.getLogger("kubengine.images")
_Account = tuple[bool, PullCredentials | None]
"""Whether a pod must prove access to a present image, and the recorded credentials that prove it."""


def fault_of_name(name: str) -> str:
    """Return why a text is not a valid image name, or '' if it is."""
    if _ID.fullmatch(name):
        return f"invalid repository name ({name}), cannot specify 64-byte hexadecimal strings"
    host, rest = _split(name)
    repository = rest.partition(":")[0]
    if repository.lower() != repository:
        return f"invalid reference format: repository name ({repository}) must be lowercase"
    whole = f"{host}/{rest}"
    found = _REFERENCE.fullmatch(whole)
    if found is None:
        lower = _REFERENCE.fullmatch(whole.lower())
        return "repository name must be lowercase" if lower else "invalid reference format"
    if len(found["path"]) > _LONGEST_PATH:
        return f"repository name must not be more than {_LONGEST_PATH} characters"
    return _fault_of_digest(found["digest"]) if found["digest"] else ""


def repository_of(name: str) -> str:
    """Return the full name of an image's repository: registry and path, without tag and digest."""
    host, rest = _split(name.partition("@")[0])
    return f"{host}/{rest.partition(':')[0]}"


def _split(name: str) -> tuple[str, str]:
    """Split into registry and path, with Docker Hub as the default. A first part with uppercase letters is a
    registry.
    """
    first, slash, rest = name.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first or first.lower() != first):
        host, path = ("docker.io" if first == "index.docker.io" else first), rest
    else:
        host, path = "docker.io", name
    return host, f"library/{path}" if host == "docker.io" and "/" not in path else path


def _fault_of_digest(digest: str) -> str:
    algorithm, _, text = digest.partition(":")
    length = _DIGEST_LENGTHS.get(algorithm)
    if length is None and algorithm == algorithm.lower():
        return "unsupported digest algorithm"
    if length is not None and len(text) != length:
        return "invalid checksum digest length"
    return "" if digest == digest.lower() else "invalid checksum digest format"


class PodCredentials(ServiceAccounts, Protocol):
    """Provide a pod's pull secrets, service accounts and their tokens."""

    async def secret(self, pod: Pod, name: str) -> Secret:
        """Return the secret. Raises `KubengineError`."""


CredentialPrograms = Callable[[str, Pod, PodCredentials], Awaitable[Sequence[Credentials]]]


class ImageAccess:
    """Decide which pods of one node may use an image.

    `objects` provides pods' pull secrets and service accounts; `programs` runs the credential provider
    plugins.
    """

    def __init__(
        self,
        config: KubeletConfiguration,
        *,
        records: PullRecords,
        node: NodeCredentials,
        programs: CredentialPrograms | None,
        objects: PodCredentials,
        recorder: EventRecorder,
        registry: Registry,
    ) -> None:
        """Raise `InvalidInput` for an unknown policy or a bad pattern."""
        self._policy = config.image_pull_credentials_verification_policy or PRELOADED
        self._allowed = config.preloaded_images_verification_allowlist or []
        check_policy(self._policy, self._allowed)
        self._records = records
        self._node = node
        self._programs = programs
        self._objects = objects
        self._recorder = recorder
        self._checks = registry.counter(
            "kubelet_imagemanager_image_mustpull_checks_total",
            "How often it was checked whether a pod has to show a credential for an image that is present.",
            ["result"],
        )
        self._accounts: dict[tuple[str, str], tuple[object, _Account]] = {}
        """By image and reference: the edition of the records when they were read, and the account."""

    async def reconcile(self, runtime: RuntimeClient) -> None:
        """Update the records of an earlier agent. Call it before the first image is requested."""
        try:
            if await asyncio.to_thread(lambda: self._records.empty):
                return
            images = await runtime.list_images()
            present = [(image.id, [*image.repo_tags, *image.repo_digests]) for image in images]
            await asyncio.to_thread(self._records.reconcile, present)
        except (Refused, OSError) as error:
            log.error("cannot update the records of pulled images: %s", error)

    async def images_listed(self, present: Sequence[str], at: float) -> None:
        """Drop the records of images that are not among the ids of all present images."""
        self._accounts.clear()
        try:
            await asyncio.to_thread(self._records.prune, present, at)
        except OSError as error:
            log.error("cannot remove the records of deleted images: %s", error)

    async def may_use(self, pod: Pod, image: str, reference: str) -> bool:
        """Tell whether a pod may use a present image without pulling it again."""
        try:
            must_show, known = await self._account(image, reference)
        except OSError as error:
            log.error("image %s: its pull record is unreadable, pulling the image again: %s", image, error)
            self._checks.inc("error")
            return False
        if not must_show:
            self._checks.inc("credentialPolicyAllowed")
            return True
        allowed = known is not None and await self._is_recorded(pod, image, reference, known)
        self._checks.inc("credentialRecordFound" if allowed else "mustAuthenticate")
        return allowed

    async def _is_recorded(self, pod: Pod, image: str, reference: str, known: PullCredentials) -> bool:
        """Tell whether the image was pulled with a credential that the pod has."""
        if known.node_pods_accessible:
            return True
        if known.kubernetes_service_accounts and await self._is_one_of(pod, known):
            return True
        return bool(known.kubernetes_secrets) and await self._has_one_of(pod, image, reference, known)

    async def _is_one_of(self, pod: Pod, known: PullCredentials) -> bool:
        """Tell whether the image was pulled with a token of the pod's service account."""
        namespace, name = pod.metadata.namespace, pod.spec.service_account_name
        accounts = known.kubernetes_service_accounts or []
        uids = {each.uid for each in accounts if (each.namespace, each.name) == (namespace, name)}
        if not uids:
            return False
        try:
            return (await self._objects.service_account(pod)).metadata.uid in uids
        except KubengineError as error:
            log.warning("pod %s: cannot read service account %s: %s", pod.full_name, name, error)
            return False

    async def _account(self, image: str, reference: str) -> _Account:
        """Return the account of an image. It is cached until a record changes, because a node's pods share
        few images.
        """
        edition = self._records.edition
        known = self._accounts.get((image, reference))
        if known is not None and known[0] is edition:
            return known[1]
        account = await asyncio.to_thread(self._read_account, image, reference)
        self._accounts[image, reference] = edition, account
        return account

    def _read_account(self, image: str, reference: str) -> _Account:
        """Read the account. Call it in a thread."""
        ours = self._records.is_ours(image, reference)
        if not must_verify(self._policy, self._allowed, image, ours=ours):
            return False, None
        return True, self._records.pull_credentials(image, reference)

    async def _has_one_of(self, pod: Pod, image: str, reference: str, known: PullCredentials) -> bool:
        """Tell whether the pod has a recorded credential, or one from a recorded secret, whose content may
        have changed.
        """
        secrets = known.kubernetes_secrets or []
        hashes = {secret.credential_hash for secret in secrets}
        places = {(secret.namespace, secret.name, secret.uid) for secret in secrets}
        for credential in keyring(await self._of_secrets(pod)).lookup(repository_of(image)):
            own = secret_of(credential)
            if own is None:
                continue
            same, placed = own.credential_hash in hashes, (own.namespace, own.name, own.uid) in places
            if not (same or placed):
                continue
            # A full record has no place for the new content of a known secret: the pod must pull the image
            # with it.
            if not same and len(secrets) >= MOST_SECRETS:
                continue
            if same != placed and len(secrets) < MOST_SECRETS:
                more = PullCredentials(kubernetes_secrets=[own])
                try:
                    await asyncio.to_thread(self._records.allow, image, reference, more)
                except (Refused, OSError) as error:
                    log.error("image %s: its pull record cannot be stored: %s", image, error)
            return True
        return False

    async def credentials(self, pod: Pod, image: str) -> Sequence[Credential]:
        """Return the credentials that match the image, in the order of attempts; empty: pull anonymously."""
        repository = repository_of(image)
        found = keyring(await self._of_secrets(pod)).lookup(repository)
        own = await asyncio.to_thread(self._node.all)
        found = [*found, *keyring([own]).lookup(repository)]
        if self._programs is not None:
            found += keyring(await self._programs(repository, pod, self._objects)).lookup(repository)
        return found

    async def record_pull_intent(self, image: str) -> None:
        """Record the intention to pull. Raises `Refused` if that cannot be stored."""
        try:
            await asyncio.to_thread(self._records.record_pull_intent, image)
        except (Refused, OSError) as error:
            text = f'Failed to record image pull intent for container image "{image}"'
            raise Refused(f"{text}: {error}") from error

    async def remove_pull_intent(self, image: str) -> None:
        await asyncio.to_thread(self._records.remove_pull_intent, image)

    async def record_image_pulled(self, image: str, reference: str, credential: Credential | None) -> None:
        try:
            await asyncio.to_thread(self._records.record_image_pulled, image, reference, credential)
        except (Refused, OSError) as error:
            log.error("image %s: its pull record cannot be stored: %s", image, error)

    async def _of_secrets(self, pod: Pod) -> list[Credentials]:
        found: list[Credentials] = []
        failed = []
        for reference in pod.spec.image_pull_secrets or []:
            if not reference.name:
                continue
            try:
                found.append(_of_secret(await self._objects.secret(pod, reference.name)))
            except KubengineError as error:
                log.warning("pod %s: cannot read pull secret %s: %s", pod.full_name, reference.name, error)
                failed.append(reference.name)
        if failed:
            text = f"Unable to retrieve some image pull secrets ({', '.join(failed)})"
            text += "; attempting to pull the image may not succeed."
            self._recorder.pod(pod, WARNING, "FailedToRetrieveImagePullSecret", text)
        return found


def must_verify(policy: str, allowed: Sequence[str], image: str, *, ours: bool) -> bool:
    """Tell whether a pod must prove access to an image; `ours` is true if the node pulled it."""
    if policy == ALLOWED:
        name = without_tag(image)
        return not any(name.startswith(p[:-1]) if p.endswith("/*") else name == p for p in allowed)
    return policy == ALWAYS or (policy == PRELOADED and ours)


def check_policy(policy: str, allowed: Sequence[str]) -> None:
    """Check the policy. Raises `InvalidInput` naming the field."""
    known = (NEVER, PRELOADED, ALLOWED, ALWAYS)
    if policy not in known:
        text = f"expected one of {', '.join(known)}; got {policy!r}"
        raise InvalidInput(text, subject="imagePullCredentialsVerificationPolicy")
    for pattern in allowed:
        whole = pattern.removesuffix("/*")
        if not whole or "*" in whole or whole != whole.strip() or without_tag(whole) != whole:
            text = f"expected an image without tag, or a prefix that ends with /*, got {pattern!r}"
            raise InvalidInput(text, subject="preloadedImagesVerificationAllowlist")


def _of_secret(secret: Secret) -> Credentials:
    """Parse the credentials of a pull secret; none for other types of secrets. Raises `InvalidInput`."""
    meta, data = secret.metadata, secret.data or {}
    source = SecretSource(meta.namespace, meta.name, meta.uid)
    if secret.type == _JSON_TYPE and data.get(_JSON_KEY):
        return docker_config(data[_JSON_KEY], source)
    if secret.type == _LEGACY_TYPE and data.get(_LEGACY_KEY):
        return docker_config(data[_LEGACY_KEY], source, legacy=True)
    return {}
