"""Stores `accepted.json` in a pod's directory: the pod as admitted here, and the manifest it came from.

The file tells which amounts, ports and devices a running pod has when its source is gone or has not been
read yet. It is written before anything of the pod is created, and again when the pod changes (a resize, a
new image).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.api.errors import Refused
from engine.api.pod import Pod
from engine.api.struct import decode_hook, to_json
from engine.host.checksummed_file import keep, kept

FILE = "accepted.json"

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
        return self._manifests.get(uid) or self._read(uid, _manifest) or ""

    def keep(self, pod: Pod) -> None:
        """Write the record. Call it in a thread. Raises `Refused` with the path."""
        stripped = Pod(metadata=pod.metadata, spec=pod.spec)
        accepted = _Accepted(self._manifests.get(pod.uid, ""), msgspec.Raw(to_json(stripped)))
        content = to_json(accepted)
        path = self._pod_directory(pod.uid) / FILE
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
            self._pod_directory(uid) / FILE, decode, without="the accepted resources of pods are unknown"
        )


def _manifest(content: bytes) -> str:
    return msgspec.json.decode(content, type=_Accepted).manifest
