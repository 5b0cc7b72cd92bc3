"""Records what a restarted agent must know about a pod.

The accepted spec is the pod as admitted here, and the manifest it came from. It tells which amounts, ports
and devices a running pod has when its source is gone or has not been read yet. It is recorded before anything
of the pod is created, and again when the pod changes (a resize, a new image).

A termination record tells that the pod has ended for good, and how: the runtime forgets dead containers and
never knew why the node ended a pod. It is written before the pod is stopped, and again with its last status.

A readiness record tells which containers were ready and started. The newest is written soon, and not synced
by itself: a power cut ends the described containers as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeVar

import msgspec

from engine.api.encoding.json_text import encode_json
from engine.api.lifecycle import PodEnd
from engine.api.pod import Pod
from engine.api.status import PodStatus
from engine.api.struct import decode_hook, to_json
from engine.host.records.store import RecordStore
from engine.node.pod.life import LifeState, PodLife
from engine.node.pod.record_names import ACCEPTED, END, READINESS, key

Known = dict[str, tuple[str, bool, bool]]
"""Container name → its id, whether it was ready, whether it had started."""

_T = TypeVar("_T")


class _Accepted(msgspec.Struct, frozen=True):
    """Hold an accepted pod; `manifest` is the digest of its manifest, empty for a pod of another source."""

    manifest: str
    pod: msgspec.Raw


class AcceptedSpecs:
    """Keep the accepted pods in a record file."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._manifests: dict[str, str] = {}

    @cached_property
    def _pods(self) -> msgspec.json.Decoder[Pod]:
        return msgspec.json.Decoder(Pod, dec_hook=decode_hook)

    def set_manifest(self, uid: str, manifest: str) -> None:
        """Note the digest of the manifest that a pod comes from; its next record contains it."""
        self._manifests[uid] = manifest

    def forget_manifests(self, uids: Iterable[str]) -> None:
        """Forget the manifests of these pods, which no longer come from one."""
        for uid in uids:
            self._manifests.pop(uid, None)

    def manifest(self, uid: str) -> str:
        """Return the digest of the manifest that a pod came from, or an empty text."""
        return self._manifests.get(uid) or self._read(uid, _decode_manifest) or ""

    async def write(self, pod: Pod) -> None:
        """Write the record, and return when it is on disk. Raises `Refused` with the path."""
        await self._store.put(key(pod.uid, ACCEPTED), self.record(pod))

    def record(self, pod: Pod) -> bytes:
        """Return the content of the record."""
        # The status changes all the time, and the runtime knows it better after a restart.
        stripped = Pod(metadata=pod.metadata, spec=pod.spec)
        return to_json(_Accepted(self._manifests.get(pod.uid, ""), msgspec.Raw(to_json(stripped))))

    def read(self, uid: str) -> Pod | None:
        """Return the pod without its status, or None if no such pod was accepted."""
        return self._read(uid, self._pod)

    def _pod(self, content: bytes) -> Pod:
        return self._pods.decode(msgspec.json.decode(content, type=_Accepted).pod)

    def _read(self, uid: str, decode: Callable[[bytes], _T]) -> _T | None:
        without = "the accepted resources of the pod are unknown"
        return self._store.read(key(uid, ACCEPTED), decode, without=without)


def _decode_manifest(content: bytes) -> str:
    return msgspec.json.decode(content, type=_Accepted).manifest


class TerminationRecord(msgspec.Struct, frozen=True):
    """Hold the end of a pod. `end` is None if it ended by itself; `status` is None while something of it
    runs.
    """

    end: PodEnd | None = None
    status: PodStatus | None = None

    @property
    def life(self) -> PodLife:
        """Return the state of the pod's life that the record implies."""
        if self.end is None:
            return PodLife(LifeState.FINISHED)
        return PodLife(LifeState.FAILING if self.status is None else LifeState.FAILED, self.end)


class TerminationRecords:
    """Keep the termination records in a record file."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._decoder = msgspec.json.Decoder(TerminationRecord, dec_hook=decode_hook)

    async def write(self, uid: str, end: TerminationRecord) -> None:
        """Write the record, and return when it is on disk. Raises `Refused`."""
        await self._store.put(key(uid, END), to_json(end))

    def read(self, uid: str) -> TerminationRecord | None:
        """Return the record, or None if the pod is not known to have ended."""
        without = "it is unknown whether the pod has ended"
        end = self._store.read(key(uid, END), self._decoder.decode, without=without)
        # An empty record says nothing: it is no end.
        return end if end is not None and (end.end is not None or end.status is not None) else None


class ReadinessRecords:
    """Keep the readiness of pods in a record file."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store

    def write(self, uid: str, known: Known) -> None:
        """Schedule a write, if the record changed."""
        content = encode_json(known)
        if self._store.get(key(uid, READINESS)) != content:
            self._store.put_soon(key(uid, READINESS), content)

    def read(self, uid: str) -> Known:
        """Return what an earlier agent recorded about a pod."""
        without = "what was ready counts as not ready"
        return self._store.read(key(uid, READINESS), _decode_readiness, without=without) or {}


def _decode_readiness(content: bytes) -> Known:
    return msgspec.json.decode(content, type=Known)
