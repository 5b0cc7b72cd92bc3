"""Repeat the image collections of a recorded node, also under other thresholds.

An image that only the replay removes is gone from then on, until a later run finds that it was used after
that, or no longer finds it. One that only the agent removed stays, unused, until it is there again. Either
changes what is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from engine.api.kubengine_config import ImagesSection
from engine.images.collection import Collection, FilesystemReading, KeptImage
from engine.images.layers import Layers
from engine.images.measured_run import MeasuredRun, UnusedImage
from engine.images.policy import LAYERS, MEASURED, ImageGCPolicy
from engine.images.records import ImageRecords, SeenImage
from engine.images.report import ImageGCFailure, ImageGCReport
from engine.plan.replay.decided import Replayed, collection

_PERIODIC: Final = "gc"
_PURPOSE: Final[Mapping[str, str]] = {
    _PERIODIC: "the periodic collection",
    "delete-unused": "before an eviction",
}


def repeats_images(section: ImagesSection) -> bool:
    """Tell whether recorded values determine what is removed.

    Shared layers, and what a removal gives back, are only known at the time.
    """
    by_sizes = section.order != LAYERS and section.accounting != MEASURED
    return by_sizes and not section.inode_high_threshold_percent


class ImageReplay:
    """Repeat the runs of one agent; `times` counts how often each image was collected so far."""

    def __init__(self, policy: ImageGCPolicy, times: Counter[str]) -> None:
        self._policy, self._times = policy, times
        self._gone: dict[str, float] = {}
        self._spared: dict[str, UnusedImage] = {}

    def play(self, run: MeasuredRun) -> Iterator[Replayed]:
        """Yield what is collected in a run."""
        adjusted = self._adjusted(run)
        collected = self._collect(adjusted)
        for image in adjusted.images:
            if image.key in collected:
                self._spared.pop(image.key, None)
                if not image.removed:
                    self._gone[image.key] = run.at
            elif image.removed:
                self._spared[image.key] = replace(image, removed=False)
        images = {image.key: image for image in adjusted.images}
        for key in collected:
            image, why = images[key], _PURPOSE.get(run.trigger, run.trigger)
            yield collection(run.at, key, image.name, why, image.size, self._times)

    def _adjusted(self, run: MeasuredRun) -> MeasuredRun:
        """Return a run without the images that only this replay removed, and with those that only the agent
        removed.
        """
        listed = {image.key: image for image in run.images}
        self._gone = {key: at for key, at in self._gone.items() if key in listed and listed[key].used <= at}
        self._spared = {key: image for key, image in self._spared.items() if key not in listed}
        if not (self._gone or self._spared):
            return run
        freed = sum(listed[key].size for key in self._gone)
        freed -= sum(image.size for image in self._spared.values())
        images = [image for image in run.images if image.key not in self._gone]
        available = None if run.available is None else max(run.available + freed, 0)
        return replace(run, available=available, images=[*images, *self._spared.values()])

    def _collect(self, run: MeasuredRun) -> list[str]:
        """Return the keys of the images that these rules remove."""
        report = ImageGCReport(run.at, run.trigger)
        periodic = run.trigger == _PERIODIC
        if periodic and not self._may_collect(run):
            return []
        records = ImageRecords()
        saved = {
            image.key: {"firstDetected": image.detected, "lastUsed": image.used, "size": image.size}
            for image in run.images
        }
        records.restore(saved, run.at)
        repeated = Collection(records, self._policy, _RecordedStore(run), report)
        # A run that could not free enough has removed what it could.
        with suppress(ImageGCFailure):
            _finish(repeated.garbage_collect(run.began) if periodic else repeated.delete_unused())
        return report.removed

    def _may_collect(self, run: MeasuredRun) -> bool:
        """Tell whether a periodic run has to do anything: most find the disk below the threshold."""
        if self._policy.off or not run.capacity or run.available is None:
            return False
        wanted = self._policy.bytes_to_free(run.capacity, run.available)
        return wanted is not None or self._policy.max_age > 0


class _RecordedStore:
    """Implement `ImageRemoval` with what a record says about a run."""

    def __init__(self, run: MeasuredRun) -> None:
        self._run = run
        self._images = {image.key: image for image in run.images}

    async def filesystem(self) -> FilesystemReading:
        return FilesystemReading(self._run.capacity, self._run.available)

    async def remove(self, images: Sequence[SeenImage], became: list[KeptImage | None]) -> None:
        for image in images:
            known = self._images[image.id]
            became.append(KeptImage("it failed in the record") if known.failed else None)

    async def layers(self, image: SeenImage) -> Layers:
        raise NotImplementedError("a record does not say which layers images share")

    def protected(self, image: SeenImage) -> str:
        return "it was protected in the record" if self._images[image.id].protected else ""


def _finish(run: Coroutine[Any, Any, None]) -> None:
    """Carry out a collection that never waits, because its store does not."""
    try:
        run.send(None)
    except StopIteration:
        return
    raise AssertionError("a recorded run waited")
