"""The world of one run of image GC: the runtime that removes, the file system that is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from engine.api.errors import Unavailable
from engine.cri.client import RuntimeClient
from engine.images.collection import FilesystemReading
from engine.images.filesystem import RuntimeFilesystems, read_filesystem_in_time, runtime_filesystems
from engine.images.lease import ImageLeases
from engine.images.records import SeenImage

GIVE_UP_AFTER: Final = 2
"""Removals in a row without an answer, after which the rest of a run is not tried."""


class RuntimeStore:
    """A `Store` for one run. `where` is known once the file system has been read."""

    def __init__(
        self,
        runtime: RuntimeClient,
        leases: ImageLeases,
        why_protected: Callable[[SeenImage], str],
        *,
        remove_timeout: float,
    ) -> None:
        self._runtime, self._leases, self._why_protected = runtime, leases, why_protected
        self._remove_timeout = remove_timeout
        self._silent = 0
        self.where: RuntimeFilesystems | None = None

    async def filesystem(self) -> FilesystemReading:
        if self.where is None:
            self.where = await runtime_filesystems(self._runtime)
        return await read_filesystem_in_time(self.where.images)

    async def remove(self, image: SeenImage) -> None:
        if self._silent >= GIVE_UP_AFTER:
            raise Unavailable(f"not tried: the runtime left {self._silent} removals in a row unanswered")
        limit = self._remove_timeout
        try:
            async with self._leases.removal((image.id, *image.names)), asyncio.timeout(limit):
                await self._runtime.remove_image(image.id, image.handler)
        except TimeoutError:
            self._silent += 1
            raise Unavailable(f"RemoveImage {image.id} did not answer within {limit:g} s") from None
        except Unavailable:
            self._silent += 1
            raise
        self._silent = 0

    def protected(self, image: SeenImage) -> str:
        return self._why_protected(image)
