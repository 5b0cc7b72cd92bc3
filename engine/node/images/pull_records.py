"""Records with which credentials the node pulled images. A pod may use an image that was pulled with a secret
only if it has the secret too.

The files below `<root>/image_manager` are those of a kubelet v1.36. `pulling/` has an entry for an image name
while it is being pulled. If the agent crashes during the pull, the entry shows that the image was not
preloaded. `pulled/` has an entry for each image with the credentials that permit its use, by image name. The
file names are the SHA-256 of the image name or id.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from engine.api.encoding.digest import sha256
from engine.api.struct import Struct, to_json
from engine.api.timestamps import rfc3339
from engine.host.files import replace_file
from engine.node.images.keyring import Credential, SecretSource

API_VERSION: Final = "kubelet.config.k8s.io/v1beta1"
MOST_SECRETS: Final = 100
"""The maximum number of secrets recorded per image."""

T = TypeVar("T")
log = logging.getLogger("kubengine.images")


class PullSecret(Struct):
    uid: str
    namespace: str
    name: str
    credential_hash: str


class PullServiceAccount(Struct):
    uid: str
    namespace: str
    name: str


class PullCredentials(Struct):
    """List the credentials that allow a pod to use an image under one name, or allow every pod of the
    node.
    """

    kubernetes_secrets: list[PullSecret] | None = None
    kubernetes_service_accounts: list[PullServiceAccount] | None = None
    node_pods_accessible: bool = False


class PulledRecord(Struct):
    image_ref: str
    last_updated_time: str
    credential_mapping: dict[str, PullCredentials] | None = None
    kind: str = "ImagePulledRecord"
    api_version: str = API_VERSION

    @property
    def written_at(self) -> float:
        """Return Unix seconds, rounded; 0 if the record has no time."""
        try:
            return datetime.fromisoformat(self.last_updated_time).timestamp()
        except ValueError:
            return 0.0


class PullIntent(Struct):
    image: str
    kind: str = "ImagePullIntent"
    api_version: str = API_VERSION


_pulled: Final = msgspec.json.Decoder(PulledRecord)
_intents: Final = msgspec.json.Decoder(PullIntent)


class PullRecords:
    """Keep the pull records of a node on disk; every method accesses the disk. `clock` returns Unix
    seconds.
    """

    def __init__(self, root: Path, clock: Callable[[], float]) -> None:
        self._pulling = root / "image_manager" / "pulling"
        self._pulled = root / "image_manager" / "pulled"
        self._clock = clock
        self._under_way: dict[str, int] = {}
        self.edition = object()
        """Changes with every write. If it has not changed since a read, the read records are current."""

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change the edition before and after a write: a concurrent reader then has an outdated one."""
        self.edition = object()
        try:
            yield
        finally:
            self.edition = object()

    def record_pull_intent(self, image: str) -> None:
        """Record the intent to pull. Raises `Refused`; the caller must not pull then."""
        self._pulling.mkdir(mode=0o700, parents=True, exist_ok=True)
        intent = {"kind": "ImagePullIntent", "apiVersion": API_VERSION, "image": image}
        with self._changing():
            replace_file(_file(self._pulling, image), to_json(intent))
            self._under_way[image] = self._under_way.get(image, 0) + 1

    def remove_pull_intent(self, image: str) -> None:
        """Remove the intent of a pull that has ended, unless another pull of the image is under way."""
        left = self._under_way.get(image, 1) - 1
        if left > 0:
            self._under_way[image] = left
            return
        with self._changing():
            self._under_way.pop(image, None)
            with suppress(OSError):
                _file(self._pulling, image).unlink(missing_ok=True)

    def record_image_pulled(self, image: str, reference: str, credential: Credential | None) -> None:
        """Record a successful pull, with the credential if any. Raises `Refused`; the intent remains then."""
        self.allow(image, reference, _pull_credentials(credential))
        self.remove_pull_intent(image)

    def is_ours(self, image: str, reference: str) -> bool:
        """Return whether the node pulled the image, or began to pull it."""
        if image in self._under_way or _file(self._pulled, reference).exists():
            return True
        intent = _read(_file(self._pulling, image), _intents)
        return intent is not None and intent.image == image

    def pull_credentials(self, image: str, reference: str) -> PullCredentials | None:
        """Return the recorded credentials of a pulled image; None without a record of the image name."""
        record = self._record(reference)
        return (record.credential_mapping or {}).get(without_tag(image)) if record is not None else None

    def allow(self, image: str, reference: str, more: PullCredentials | None) -> None:
        """Allow further credentials. None means unknown credentials: every pod must authenticate. Raises
        `Refused`.
        """
        name = without_tag(image)
        record = self._record(reference)
        mapping = dict((record and record.credential_mapping) or {})
        before = mapping.get(name)
        after = before if more is None else merged(before, more)
        if record is not None and after == before:
            return
        if after is not None:
            mapping[name] = after
        document = {
            "kind": "ImagePulledRecord",
            "apiVersion": API_VERSION,
            "lastUpdatedTime": rfc3339(self._clock()),
            "imageRef": reference,
            "credentialMapping": mapping,
        }
        self._pulled.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._changing():
            replace_file(_file(self._pulled, reference), to_json(document))

    @property
    def empty(self) -> bool:
        return not _files(self._pulling) and not _files(self._pulled)

    def reconcile(self, present: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Record, at start, an image (id and names) that a dead agent was pulling as pulled with unknown
        credentials, and remove the records of deleted images. Raises `Refused` or `OSError`.
        """
        intents = [_read(file, _intents) for file in _files(self._pulling)]
        names = {intent.image for intent in intents if intent is not None}
        ids, found = set(), set()
        for reference, tags in present:
            ids.add(reference)
            for name in names.intersection(tags):
                self.allow(name, reference, None)
                found.add(name)
        # Removed last, so that after a crash the next agent repeats the steps above. The intents of other
        # images stay until they are pulled: a runtime may list them by a longer name, or still be pulling.
        for name in found:
            self.remove_pull_intent(name)
        self.prune(ids, math.inf)

    def prune(self, present: Collection[str], looked_at: float) -> None:
        """Remove the records of deleted images. `present` are the ids that were present at a time in Unix
        seconds; records of later images remain. Raises `OSError`.
        """
        kept = {_file(self._pulled, reference).name for reference in present}
        for file in _files(self._pulled):
            if file.name in kept:
                continue
            record = _read(file, _pulled)
            # Records have a resolution of seconds: a record from the second of the listing may be newer than
            # it.
            if record is None or record.written_at + 1 <= looked_at:
                with self._changing():
                    file.unlink(missing_ok=True)

    def _record(self, reference: str) -> PulledRecord | None:
        record = _read(_file(self._pulled, reference), _pulled)
        return record if record is not None and record.image_ref == reference else None


def merged(before: PullCredentials | None, more: PullCredentials) -> PullCredentials:
    """Merge permissions; an image that all pods of the node may use stays accessible to all."""
    if before is None or more.node_pods_accessible:
        return more
    if before.node_pods_accessible:
        return before
    secrets = {(s.namespace, s.name, s.uid): s for s in before.kubernetes_secrets or []}
    secrets |= {(s.namespace, s.name, s.uid): s for s in more.kubernetes_secrets or []}
    both = (*(before.kubernetes_service_accounts or ()), *(more.kubernetes_service_accounts or ()))
    accounts = {(account.namespace, account.name, account.uid): account for account in both}
    return PullCredentials(
        kubernetes_secrets=[secrets[key] for key in sorted(secrets)] or None,
        kubernetes_service_accounts=[accounts[key] for key in sorted(accounts)] or None,
    )


def secret_of(credential: Credential) -> PullSecret | None:
    source: SecretSource | None = credential.source
    if source is None:
        return None
    return PullSecret(source.uid, source.namespace, source.name, credential.digest)


def without_tag(image: str) -> str:
    """Return an image's name as it was written, without tag and digest."""
    name = image.partition("@")[0]
    repository, colon, tag = name.rpartition(":")
    return repository if colon and "/" not in tag else name


def _pull_credentials(credential: Credential | None) -> PullCredentials:
    if credential is not None and credential.account is not None:
        account = credential.account
        known = PullServiceAccount(account.uid, account.namespace, account.name)
        return PullCredentials(kubernetes_service_accounts=[known])
    secret = secret_of(credential) if credential is not None else None
    if secret is None:
        return PullCredentials(node_pods_accessible=True)
    return PullCredentials(kubernetes_secrets=[secret])


def _file(directory: Path, about: str) -> Path:
    return directory / f"sha256-{sha256(about.encode())}"


def _files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [file for file in directory.glob("sha256-*") if not file.name.endswith(".tmp")]


def _read(file: Path, decoder: msgspec.json.Decoder[T]) -> T | None:
    """Return the content; None for a missing file, and for a damaged one, which is logged."""
    try:
        return decoder.decode(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("%s: %s; the file is ignored", file, error)
        return None
