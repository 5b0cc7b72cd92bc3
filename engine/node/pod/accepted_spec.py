"""`accepted.json` in a pod's directory: the pod as it was accepted here, and which manifest it came from.

What runs is known by it where its source is gone, or has not been heard yet: its amounts, ports and
devices. It is on disk before anything of the pod is made, and written anew when the pod has become another
one (resized, a new image).
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
    """`manifest` is the manifest's digest, empty for a pod of another source."""

    manifest: str
    pod: msgspec.Raw


class AcceptedSpecs:
    """`pod_directory(uid)` is where a pod's files are."""

    def __init__(self, pod_directory: Callable[[str], Path]) -> None:
        self._pod_directory = pod_directory
        self._manifests: dict[str, str] = {}

    @cached_property
    def _pods(self) -> msgspec.json.Decoder[Pod]:
        return msgspec.json.Decoder(Pod, dec_hook=decode_hook)

    def comes_from(self, uid: str, manifest: str) -> None:
        """The pod of that uid is what a manifest of that digest stands for."""
        self._manifests[uid] = manifest

    def forget_manifests(self, uids: Iterable[str]) -> None:
        """No manifest stands for these pods any longer."""
        for uid in uids:
            self._manifests.pop(uid, None)

    def manifest(self, uid: str) -> str:
        """The digest of the manifest that a pod came from, empty if it is not known."""
        return self._manifests.get(uid) or self._read(uid, _manifest) or ""

    def keep(self, pod: Pod) -> None:
        """For a thread. Raises `Refused` with the path."""
        stripped = Pod(metadata=pod.metadata, spec=pod.spec)
        accepted = _Accepted(self._manifests.get(pod.uid, ""), msgspec.Raw(to_json(stripped)))
        content = msgspec.json.encode(accepted)
        path = self._pod_directory(pod.uid) / FILE
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            text = f"cannot make: {error.strerror}"
            raise Refused(text, subject=str(path.parent), errno=error.errno) from error
        if self._read(pod.uid, bytes) != content:
            keep(path, content)

    def read(self, uid: str) -> Pod | None:
        """The pod, without its status, if one of that uid was accepted."""
        return self._read(uid, self._pod)

    def _pod(self, content: bytes) -> Pod:
        return self._pods.decode(msgspec.json.decode(content, type=_Accepted).pod)

    def _read(self, uid: str, decode: Callable[[bytes], _T]) -> _T | None:
        return kept(self._pod_directory(uid) / FILE, decode, without="what was accepted is not known")


def _manifest(content: bytes) -> str:
    return msgspec.json.decode(content, type=_Accepted).manifest
