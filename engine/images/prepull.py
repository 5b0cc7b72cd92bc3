"""Keeps named images present whether or not a pod needs them (kubernetes/kubernetes#48349).

Named images are leased, so they are never collected. A missing one is pulled, with growing pauses after
failures. Nothing runs while all are present.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from engine.api.decisions import Decisions
from engine.api.duration import RetryDelays
from engine.api.errors import InvalidInput, KubengineError
from engine.host.tasks import Tasks
from engine.images.lease import normalized
from engine.metrics import Registry

RETRIES: Final = RetryDelays(10.0, 300.0)

log = logging.getLogger("kubengine.images")

PullImage = Callable[[str], Awaitable[None]]
"""Makes an image present. Raises `KubengineError`."""


class Prepull:
    """Pull `images`, named as in manifests, at most `at_once` in parallel. Raise `InvalidInput` for a name
    that is none.
    """

    def __init__(
        self,
        images: Sequence[str],
        pull: PullImage,
        *,
        at_once: int,
        decisions: Decisions,
        registry: Registry,
        tasks: Tasks,
        retries: RetryDelays = RETRIES,
    ) -> None:
        for position, name in enumerate(images):
            if not name.strip():
                raise InvalidInput("expected an image's name", subject=f"images.prepull[{position}]")
        if at_once < 1:
            raise InvalidInput(f"expected at least 1, got {at_once}", subject="images.prepullAtOnce")
        self._names = {normalized(name): name for name in images}
        self._pull, self._decisions = pull, decisions
        self._slots = asyncio.Semaphore(at_once)
        self._tasks = tasks.passing("image-prepull")
        self._under_way: set[str] = set()
        self._retries = retries
        self._counted = registry.counter(
            "kubengine_image_prepulls_total", "Pulls of the images in images.prepull.", ["result"]
        )
        missing = registry.gauge(
            "kubengine_image_prepull_missing", "Images in images.prepull that the node does not have."
        )
        self._missing = missing
        missing.set(len(self._names))

    def __bool__(self) -> bool:
        return bool(self._names)

    def leases(self, names: Iterable[str]) -> str:
        """Return the configured name of an image with these names, or an empty text."""
        if not self._names:
            return ""
        return next((self._names[full] for name in names if (full := normalized(name)) in self._names), "")

    def update(self, present: Iterable[str]) -> None:
        """Start pulling what is missing among the names that are present."""
        missing = self._names.keys() - map(normalized, present)
        self._missing.set(len(missing))
        for full in sorted(missing - self._under_way):
            self._under_way.add(full)
            self._tasks.start(self._until_it_is_there(full), self._names[full])

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _until_it_is_there(self, full: str) -> None:
        pauses, reported = iter(self._retries), ""
        try:
            while True:
                async with self._slots:
                    failure = await self._failure_of_pull(self._names[full])
                if not failure:
                    return
                if failure != reported:
                    reported = failure
                    log.warning("cannot keep image %s ready: %s", self._names[full], failure)
                    self._record("failed", full, failure)
                await asyncio.sleep(next(pauses))
        finally:
            self._under_way.discard(full)

    async def _failure_of_pull(self, name: str) -> str:
        """Return what went wrong, or an empty text."""
        try:
            await self._pull(name)
        except KubengineError as error:
            self._counted.inc("failed")
            return str(error)
        self._counted.inc("pulled")
        self._missing.inc(by=-1)
        self._record("pulled", normalized(name), "kept ready: named in images.prepull")
        return ""

    def _record(self, outcome: str, full: str, reason: str) -> None:
        self._decisions.record("image-pull", outcome, reason, {"image": full, "name": self._names[full]})
