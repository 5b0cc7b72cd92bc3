"""One run of image GC over the records: the age pass, then the space pass, step by step.

The rules are here, the world is behind `Store`: it lists, measures and removes. Nothing in a run
depends on the time that passes during it; `now` is given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.api.duration import Duration
from engine.api.errors import KubengineError
from engine.api.sizes import binary_size
from engine.images import selection
from engine.images.policy import MEASURED, ImageGCPolicy
from engine.images.records import ImageRecords, SeenImage
from engine.images.report import (
    AGE,
    FAILED,
    KEPT,
    REMOVED,
    SPACE,
    WOULD_REMOVE,
    ImageGCFailure,
    ImageGCReport,
    ImageVerdict,
    aggregate,
)
from engine.tables import ImageColumns


@dataclass(frozen=True, slots=True)
class FilesystemReading:
    """The image file system now, in bytes and inodes; None where it could not be told."""

    capacity: int | None
    available: int | None
    inodes: int | None = None
    inodes_free: int | None = None


class Store(Protocol):
    """What a run asks of the world."""

    async def filesystem(self) -> FilesystemReading:
        """Raises `KubengineError` or `OSError` if it cannot be read."""

    async def remove(self, image: SeenImage) -> None:
        """Raises `KubengineError` if the image stays."""

    def protected(self, image: SeenImage) -> str:
        """Why our own policies keep the image, or an empty string."""


def nothing_protects(_: SeenImage) -> str:
    """`Store.protected` where no policy of ours is on."""
    return ""


class Judged(NamedTuple):
    """What became of an image, as `ImageVerdict` says it."""

    verdict: str
    reason: str
    cause: str = ""


class Collection:
    """A run in progress. `report` grows with it; the records forget what was removed when it ends."""

    def __init__(
        self,
        records: ImageRecords,
        policy: ImageGCPolicy,
        store: Store,
        report: ImageGCReport,
    ) -> None:
        self.records, self.policy, self.store, self.report = records, policy, store, report
        self._judged: dict[int, Judged] = {}
        self._images: list[SeenImage] = []
        self._measured: dict[int, int] = {}
        """What a removal gave where that was measured; else it is the image's size."""

    def acted(self) -> list[int]:
        """The rows of the images that were removed, or should have been, in their order."""
        return [row for row, judged in self._judged.items() if judged.verdict in (REMOVED, FAILED)]

    def protected(self) -> list[tuple[SeenImage, str]]:
        """The images that `Store.protected` kept, with its reasons."""
        judged = self._judged.items()
        return [(self._images[row], one.reason) for row, one in judged if one.verdict == KEPT]

    def account_of(self, row: int) -> tuple[SeenImage, Judged, int]:
        """An image that was looked at, what became of it, and how many bytes that gave."""
        judged = self._judged[row]
        return self._images[row], judged, self._freed(row, judged)

    def _freed(self, row: int, judged: Judged) -> int:
        if judged.verdict not in (REMOVED, WOULD_REMOVE):
            return 0
        return self._measured.get(row, self._images[row].size)

    async def garbage_collect(self, began: float) -> None:
        """The periodic run. Raises `ImageGCFailure`; the report is complete either way."""
        self._begin()
        try:
            await self._free_old(began)
            reading = await self._reading()
            wanted = self.policy.bytes_to_free(reading.capacity or 0, reading.available or 0)
            inodes = self.policy.inodes_to_free(reading.inodes or 0, reading.inodes_free or 0)
            self.report.wanted = wanted
            if wanted is not None:
                await self._free_space(wanted)
                if self.report.freed < wanted:
                    raise ImageGCFailure("insufficient", self._insufficient(reading))
            elif inodes is not None:
                await self._free_inodes(inodes)
        finally:
            self._conclude()

    def _insufficient(self, reading: FilesystemReading) -> str:
        """What is said when too little could go, in the words of kubelet v1.36."""
        capacity = reading.capacity or 0
        used = self.policy.used_percent(capacity, reading.available or 0)
        return (
            "Insufficient free disk space on the node's image filesystem "
            f"({used}% of {binary_size(capacity)} used). Failed to free sufficient space by deleting unused "
            f"images (freed {self.report.freed} bytes). Investigate disk usage, as it could be used by "
            "active images, logs, volumes, or other data."
        )

    async def delete_unused(self) -> None:
        """What eviction asks for: everything that may go. The minimum age still holds."""
        self._begin()
        self.report.wanted = selection.EVERYTHING
        try:
            await self._free_space(selection.EVERYTHING)
        finally:
            self._conclude()

    def _begin(self) -> None:
        self._images = self.records.images()
        protected = self.store.protected
        if protected is nothing_protects:
            return
        for row in np.flatnonzero(selection.unused(self.records.table.columns)).tolist():
            reason = protected(self._images[row])
            if reason:
                self._judged[row] = Judged(KEPT, reason)

    def _undecided(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """`mask` without the rows whose images have been judged."""
        mask[list(self._judged)] = False
        return mask

    async def _free_old(self, began: float) -> None:
        policy, now = self.policy, self.report.at
        mask = self._undecided(selection.old(self.records.table.columns, policy, now, began))
        rows = selection.order(self.records.table.columns, mask, policy, now).tolist()
        why = f"unused for more than {Duration(policy.max_age)}"
        self.report.freed_by_age, errors = await self._remove(rows, AGE, why)
        if errors:
            raise ImageGCFailure(
                "delete_failed_age",
                f"wanted to free images older than {Duration(policy.max_age)}, "
                f"encountered errors in image deletion: {aggregate(errors)}",
            )

    async def _reading(self) -> FilesystemReading:
        try:
            reading = await self.store.filesystem()
        except (KubengineError, OSError) as error:
            raise ImageGCFailure("stats", str(error)) from error
        self.report.capacity, self.report.available = reading.capacity, reading.available
        if not reading.capacity:
            raise ImageGCFailure("invalid_capacity", "invalid capacity 0 on image filesystem")
        return reading

    async def _free_space(self, wanted: int) -> None:
        report = self.report
        before = report.available if self.policy.accounting == MEASURED and not report.dry_run else None

        async def enough(row: int) -> bool:
            nonlocal before
            after = await self._available()
            if after is not None:
                self._measured[row] = max(after - (before or 0), 0)
                before = after
            report.freed += self._measured.get(row, self._images[row].size)
            return report.freed >= wanted

        rows = self._candidates(wanted, every=self.policy.accounting == MEASURED)
        if before is None:
            report.freed, errors = await self._remove(rows, SPACE, "for space", wanted)
        else:
            _, errors = await self._remove(rows, SPACE, "for space", enough=enough)
        if errors:
            raise ImageGCFailure(
                "delete_failed_space",
                f"wanted to free {wanted} bytes, but freed {report.freed} bytes space with errors in "
                f"image deletion: {aggregate(errors)}",
            )

    async def _free_inodes(self, wanted: int) -> None:
        """Image sizes say nothing of inodes: the file system is asked after each removal."""

        async def enough(row: int) -> bool:
            reading = await self._reading()
            return self.policy.enough_inodes(reading.inodes or 0, reading.inodes_free or 0)

        rows = self._candidates(selection.EVERYTHING)
        self.report.freed, errors = await self._remove(rows, SPACE, "for inodes", enough=enough)
        if errors:
            raise ImageGCFailure(
                "delete_failed_space",
                f"wanted to free {wanted} inodes, encountered errors in image deletion: {aggregate(errors)}",
            )

    def _candidates(self, wanted: int, *, every: bool = False) -> Iterator[int]:
        """Rows for space in order; after a cut that did not free enough, the next ones."""
        columns, now = self.records.table.columns, self.report.at
        mask = self._undecided(selection.spare(columns, self.policy, now))
        while True:
            target = selection.EVERYTHING if every else max(wanted - self._freed_for_space(), 0)
            rows = selection.order(columns, mask, self.policy, now, target)
            if not len(rows):
                return
            mask[rows] = False
            yield from rows.tolist()

    def _freed_for_space(self) -> int:
        return sum(self._freed(row, judged) for row, judged in self._judged.items() if judged.cause == SPACE)

    async def _remove(
        self,
        rows: Iterable[int],
        cause: str,
        why: str,
        wanted: int = selection.EVERYTHING,
        enough: Callable[[int], Awaitable[bool]] | None = None,
    ) -> tuple[int, list[str]]:
        """Remove these images in their order, or in a dry run say so, until they make up the `wanted` bytes
        or there is `enough`; the bytes, by the images' sizes, and the errors."""
        images, protected, remove = self._images, self.store.protected, self.store.remove
        dry_run = self.report.dry_run
        judgement = Judged(WOULD_REMOVE if dry_run else REMOVED, why, cause)
        freed, errors = 0, []
        for row in rows:
            image = images[row]
            kept = protected(image)
            if kept:
                self._judged[row] = Judged(KEPT, kept)
                continue
            if not dry_run:
                try:
                    await remove(image)
                except KubengineError as error:
                    self._judged[row] = Judged(FAILED, error.message, cause)
                    errors.append(error.message)
                    continue
            self._judged[row] = judgement
            freed += image.size
            if freed >= wanted or (enough is not None and await enough(row)):
                break
        return freed, errors

    async def _available(self) -> int | None:
        try:
            return (await self.store.filesystem()).available
        except (KubengineError, OSError):
            return None

    def _conclude(self) -> None:
        report, columns = self.report, self.records.table.columns.copy()
        removed: list[int] = []
        for row, judged in self._judged.items():
            if judged.verdict == KEPT:
                continue
            key = self.records.key_of(self._images[row])
            report.attempted.append(key)
            if judged.verdict == REMOVED:
                report.removed.append(key)
                report.removed_by[judged.cause] = report.removed_by.get(judged.cause, 0) + 1
                removed.append(row)
            elif judged.verdict == FAILED:
                report.failed[key] = judged.reason
        self.records.forget_rows(removed)
        report.account = lambda: self._account(columns, report.at)

    def _account(self, columns: ImageColumns, now: float) -> list[ImageVerdict]:
        """One verdict for each image: those that were judged, in that order, and then the others."""
        judged = dict(self._judged)
        for row in np.flatnonzero(columns.live).tolist():
            if row not in judged:
                reason = selection.why_kept(columns, row, self.policy, now)
                judged[row] = Judged(KEPT, reason or "not needed to reach the low threshold")
        images = self._images
        return [
            ImageVerdict(
                self.records.key_of(images[row]), images[row].names, images[row].size,
                one.verdict, one.reason, self._freed(row, one), one.cause,
            )
            for row, one in judged.items()
        ]  # fmt: skip
