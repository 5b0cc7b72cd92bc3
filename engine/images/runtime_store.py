"""Connects one run of image GC with the runtime, which removes, and the file system, which is measured."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from engine.api.errors import KubengineError, Unavailable
from engine.cri.client import RuntimeClient
from engine.images.collection import FilesystemReading, KeptImage
from engine.images.filesystem import RuntimeFilesystems, read_filesystem_in_time, runtime_filesystems
from engine.images.layers import Layers, reported_layers
from engine.images.lease import ImageLeases
from engine.images.records import SeenImage

CHECKS: Final = 8
"""Fraction of the deadline after which a wait is checked."""
log = logging.getLogger("kubengine.images")
GIVE_UP_AFTER: Final = 2
"""Unanswered removals in a row after which the rest of a run is skipped."""


class RemovalDeadline:
    """Cancel a wait of the creating task after `seconds`, or up to an eighth later.

    A timer checks now and then whether the same wait is still running, so that a short wait costs next to
    nothing. Call `begin` before each wait, which ends the one before, and `end` after the last; after a
    cancellation, `ended_it` tells whether it was ours.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._waits = 0
        self._seen = 0
        self._checks = 0
        self._over = False
        self._timer = self._loop.call_later(seconds / CHECKS, self._check)

    def begin(self) -> None:
        self._waits += 1

    def end(self) -> None:
        self._waits = self._seen = 0

    def ended_it(self) -> bool:
        """Return whether this deadline, and nothing else, cancelled the wait."""
        over, self._over = self._over, False
        return over and self._task is not None and self._task.uncancel() == 0

    def close(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        self._timer = self._loop.call_later(self.seconds / CHECKS, self._check)
        if self._waits != self._seen:
            self._seen, self._checks = self._waits, 0
        elif self._waits and self._task is not None:
            self._checks += 1
            if self._checks == CHECKS:
                self._over = True
                self._task.cancel()


class RuntimeStore:
    """Implement `Store` for one run; close it afterwards.

    `where` is known once the file system has been read. `leases` keep starts and removals apart. `layers`
    are those that earlier runs have read, by image.
    """

    def __init__(
        self,
        runtime: RuntimeClient,
        leases: ImageLeases | None,
        why_protected: Callable[[SeenImage], str],
        *,
        remove_timeout: float,
        layers: dict[str, Layers] | None = None,
    ) -> None:
        self._runtime, self._leases = runtime, leases
        self.protected = why_protected
        self._layers = {} if layers is None else layers
        self._deadline = RemovalDeadline(remove_timeout)
        self._silent = 0
        self.where: RuntimeFilesystems | None = None

    def close(self) -> None:
        self._deadline.close()

    async def filesystem(self) -> FilesystemReading:
        if self.where is None:
            self.where = await runtime_filesystems(self._runtime)
        return await read_filesystem_in_time(self.where.images)

    async def layers(self, image: SeenImage) -> Layers:
        known = self._layers.get(image.id)
        if known is None:
            try:
                info = await self._runtime.image_info(image.id, image.handler)
            except KubengineError as error:
                log.warning("layers of image %s are not known: %s", image.id, error)
                return reported_layers({}, image.id, image.size)
            known = self._layers[image.id] = reported_layers(info, image.id, image.size)
        return known

    async def remove(self, images: Sequence[SeenImage], became: list[KeptImage | None]) -> None:
        deadline, leases, remove_image = self._deadline, self._leases, self._runtime.remove_image
        try:
            for image in images:
                if leases is not None and (kept := self.protected(image)):
                    became.append(KeptImage(kept, failed=False))
                    continue
                if self._silent >= GIVE_UP_AFTER:
                    text = f"not tried: the runtime left {self._silent} removals in a row unanswered"
                    became.append(KeptImage(text))
                    continue
                deadline.begin()
                try:
                    if leases is None:
                        await remove_image(image.id, image.handler)
                    else:
                        async with leases.removal((image.id, *image.names)):
                            await remove_image(image.id, image.handler)
                except asyncio.CancelledError:
                    if not deadline.ended_it():
                        raise
                    self._silent += 1
                    text = f"RemoveImage {image.id} did not answer within {deadline.seconds:g} s"
                    became.append(KeptImage(text))
                except KubengineError as error:
                    self._silent += isinstance(error, Unavailable)
                    became.append(KeptImage(error.message))
                else:
                    self._silent = 0
                    became.append(None)
        finally:
            deadline.end()
