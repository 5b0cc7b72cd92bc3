"""Stores what a restarted agent must know about a pod, in the pod's directory.

`accepted.json` is the pod as admitted here, and the manifest it came from. It tells which amounts, ports and
devices a running pod has when its source is gone or has not been read yet. It is written before anything of
the pod is created, and again when the pod changes (a resize, a new image).

`end.json` tells that the pod has ended for good, and how: the runtime forgets dead containers and never knew
why the node ended a pod. It is written before the pod is stopped, and again with its last status.

`readiness.json` tells which containers were ready and started. A background task writes only the newest
record of each pod, without fsync: a power cut ends the described containers as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.api.encoding.json_text import encode_json
from engine.api.errors import Refused, Unavailable
from engine.api.lifecycle import PodEnd
from engine.api.pod import Pod
from engine.api.status import PodStatus
from engine.api.struct import decode_hook, to_json
from engine.host.checksummed_file import keep, kept
from engine.host.tasks import Tasks
from engine.node.pod.life import LifeState, PodLife

ACCEPTED_FILE = "accepted.json"
TERMINATION_FILE = "end.json"
READINESS_FILE = "readiness.json"
GATHER_SECONDS = 0.1
"""Changes within this many seconds are written together, because many pods become ready at the same time."""
WITHOUT_READINESS = "what was ready counts as not ready"

Known = dict[str, tuple[str, bool, bool]]
"""Container name → its id, whether it was ready, whether it had started."""

log = logging.getLogger("kubengine.pods")

_T = TypeVar("_T")


class _Accepted(msgspec.Struct, frozen=True):
    """`manifest` is the digest of the manifest, empty for a pod of another source."""

    manifest: str
    pod: msgspec.Raw


class AcceptedSpecs:
    """Store accepted pods; `pod_directory(uid)` returns the directory of a pod."""

    def __init__(self, pod_directory: Callable[[str], Path]) -> None:
        self._pod_directory = pod_directory
        self._manifests: dict[str, str] = {}

    @cached_property
    def _pods(self) -> msgspec.json.Decoder[Pod]:
        return msgspec.json.Decoder(Pod, dec_hook=decode_hook)

    def comes_from(self, uid: str, manifest: str) -> None:
        """Tell whether the pod with that uid came from the manifest with that digest."""
        self._manifests[uid] = manifest

    def forget_manifests(self, uids: Iterable[str]) -> None:
        """No manifest stands for these pods any longer."""
        for uid in uids:
            self._manifests.pop(uid, None)

    def manifest(self, uid: str) -> str:
        """Return the digest of the manifest that a pod came from, or an empty text."""
        return self._manifests.get(uid) or self._read(uid, _decode_manifest) or ""

    def keep(self, pod: Pod) -> None:
        """Write the record. Call it in a thread. Raises `Refused` with the path."""
        stripped = Pod(metadata=pod.metadata, spec=pod.spec)
        accepted = _Accepted(self._manifests.get(pod.uid, ""), msgspec.Raw(to_json(stripped)))
        content = to_json(accepted)
        path = self._pod_directory(pod.uid) / ACCEPTED_FILE
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            text = f"cannot create: {error.strerror}"
            raise Refused(text, subject=str(path.parent), errno=error.errno) from error
        if self._read(pod.uid, bytes) != content:
            keep(path, content)

    def read(self, uid: str) -> Pod | None:
        """Return the pod without its status, or None if no such pod was accepted."""
        return self._read(uid, self._pod)

    def _pod(self, content: bytes) -> Pod:
        return self._pods.decode(msgspec.json.decode(content, type=_Accepted).pod)

    def _read(self, uid: str, decode: Callable[[bytes], _T]) -> _T | None:
        return kept(
            self._pod_directory(uid) / ACCEPTED_FILE,
            decode,
            without="the accepted resources of pods are unknown",
        )


def _decode_manifest(content: bytes) -> str:
    return msgspec.json.decode(content, type=_Accepted).manifest


class TerminationRecord(msgspec.Struct, frozen=True):
    """`end` is None for a pod that ended by itself; `status` is None while something of the pod runs."""

    end: PodEnd | None = None
    status: PodStatus | None = None

    @property
    def life(self) -> PodLife:
        """The state of the pod's life that the record implies."""
        if self.end is None:
            return PodLife(LifeState.FINISHED)
        return PodLife(LifeState.FAILING if self.status is None else LifeState.FAILED, self.end)


class TerminationRecords:
    """Store termination records; `pod_directory(uid)` returns the directory of a pod."""

    def __init__(self, pod_directory: Callable[[str], Path]) -> None:
        self._pod_directory = pod_directory
        self._decoder = msgspec.json.Decoder(TerminationRecord, dec_hook=decode_hook)

    def write(self, uid: str, end: TerminationRecord) -> None:
        """Write the record. Call it in a thread. Raises `OSError` or `Refused`."""
        directory = self._pod_directory(uid)
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        keep(directory / TERMINATION_FILE, to_json(end))

    def read(self, uid: str) -> TerminationRecord | None:
        """Return the record, or None if the pod is not known to have ended."""
        path = self._pod_directory(uid) / TERMINATION_FILE
        end = kept(path, self._decoder.decode, without="it is unknown whether the pod has ended")
        return end if end is not None and (end.end is not None or end.status is not None) else None


class ReadinessRecords:
    """Store readiness; `pod_directory(uid)` returns the directory of a pod."""

    def __init__(self, pod_directory: Callable[[str], Path], tasks: Tasks) -> None:
        self._pod_directory = pod_directory
        self._writing = tasks.passing("readiness")
        self._wanted: dict[str, bytes] = {}
        self._busy = False
        self._said: dict[str, int] = {}
        """The hash of the last record, so that a node with many pods keeps no second copy of each."""

    async def stop(self) -> None:
        """Stop, after pending records are written."""
        await self._writing.wait()

    def write(self, uid: str, known: Known) -> None:
        """Schedule a write, if the record changed."""
        content = encode_json(known)
        said = hash(content)
        if self._said.get(uid) == said:
            return
        self._said[uid] = said
        self._wanted[uid] = content
        if not self._busy:
            self._busy = True
            self._writing.start(self._write())

    def forget(self, uid: str) -> None:
        """Forget a pod that has ended."""
        self._said.pop(uid, None)
        self._wanted.pop(uid, None)

    def read(self, uid: str) -> Known:
        """Return what an earlier agent recorded about a pod."""
        path = self._pod_directory(uid) / READINESS_FILE
        try:
            return kept(path, _decode_readiness, without=WITHOUT_READINESS) or {}
        except Unavailable as error:
            log.error("%s; %s", error, WITHOUT_READINESS)
            return {}

    async def _write(self) -> None:
        try:
            while self._wanted:
                await asyncio.sleep(GATHER_SECONDS)
                batch, self._wanted = self._wanted, {}
                for uid in await asyncio.to_thread(self._replace, batch):
                    self._said.pop(uid, None)
        finally:
            self._busy = False

    def _replace(self, batch: Mapping[str, bytes]) -> list[str]:
        """Write pending records and return those that failed; they are written again when they change."""
        failed = []
        for uid, content in batch.items():
            try:
                keep(self._pod_directory(uid) / READINESS_FILE, content, durable=False)
            except Refused as error:
                log.warning("%s", error)
                failed.append(uid)
        return failed


def _decode_readiness(content: bytes) -> Known:
    return msgspec.json.decode(content, type=Known)
