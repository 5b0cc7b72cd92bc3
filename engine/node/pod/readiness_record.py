"""`readiness.json` in a pod's directory: what was ready and started, for an agent that comes back.

Written beside the loop, the newest of each pod only, and not synced: a power cut takes the containers that
it tells of as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from engine.api.errors import Refused, Unavailable
from engine.host.checksummed_file import keep, kept
from engine.host.tasks import Tasks

FILE = "readiness.json"
GATHER_SECONDS = 0.1
"""What changes in so long is written at once: many pods become ready at one moment."""
WITHOUT = "what was ready counts as not ready"

Known = dict[str, tuple[str, bool, bool]]
"""Container name → its id, whether it was ready, whether it had started."""

log = logging.getLogger("kubengine.pods")


class ReadinessRecords:
    """`pod_directory(uid)` is where a pod's files are."""

    def __init__(self, pod_directory: Callable[[str], Path], tasks: Tasks) -> None:
        self._pod_directory = pod_directory
        self._writing = tasks.passing("readiness")
        self._wanted: dict[str, bytes] = {}
        self._busy = False
        self._said: dict[str, int] = {}
        """The hash of what was written last: a node of many pods keeps no second copy of each."""

    async def stop(self) -> None:
        """Returns when what was to be written is."""
        await self._writing.wait()

    def write(self, uid: str, known: Known) -> None:
        """Soon, if it is anything new."""
        content = msgspec.json.encode(known)
        said = hash(content)
        if self._said.get(uid) == said:
            return
        self._said[uid] = said
        self._wanted[uid] = content
        if not self._busy:
            self._busy = True
            self._writing.start(self._write())

    def forget(self, uid: str) -> None:
        """The pod has ended."""
        self._said.pop(uid, None)
        self._wanted.pop(uid, None)

    def read(self, uid: str) -> Known:
        """What an earlier agent knew of a pod."""
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
        """Those that could not be written; they are again when they change."""
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
