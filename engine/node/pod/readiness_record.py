"""Stores `readiness.json` in a pod's directory: which containers were ready and started.

A background task writes only the newest record of each pod, without fsync: a power cut ends the described
containers as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from engine.api.encoding.json_text import encode_json
from engine.api.errors import Refused, Unavailable
from engine.host.checksummed_file import keep, kept
from engine.host.tasks import Tasks

FILE = "readiness.json"
GATHER_SECONDS = 0.1
"""Changes within this many seconds are written together, because many pods become ready at the same time."""
WITHOUT = "what was ready counts as not ready"

Known = dict[str, tuple[str, bool, bool]]
"""Container name → its id, whether it was ready, whether it had started."""

log = logging.getLogger("kubengine.pods")


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
        path = self._pod_directory(uid) / FILE
        try:
            return kept(path, _decode, without=WITHOUT) or {}
        except Unavailable as error:
            log.error("%s; %s", error, WITHOUT)
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
                keep(self._pod_directory(uid) / FILE, content, durable=False)
            except Refused as error:
                log.warning("%s", error)
                failed.append(uid)
        return failed


def _decode(content: bytes) -> Known:
    return msgspec.json.decode(content, type=Known)
