"""One run of image GC over the records: the age pass, then the space pass, step by step.

The rules are here, the world is behind `Store`: it lists, measures and removes. Nothing in a run
depends on the time that passes during it; `now` is given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

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


class Collection:
    """A run in progress. `report` grows with it."""

    def __init__(
        self,
        records: ImageRecords,
        policy: ImageGCPolicy,
        store: Store,
        report: ImageGCReport,
    ) -> None:
        self.records, self.policy, self.store, self.report = records, policy, store, report
        self._verdicts: dict[int, ImageVerdict] = {}
        self._gone = np.zeros(0, np.bool_)

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
        columns = self.records.table.columns
        self._gone = np.zeros(len(columns.live), np.bool_)
        for row in np.flatnonzero(selection.unused(columns)).tolist():
            reason = self.store.protected(self.records.image(row))
            if reason:
                self._judge(row, KEPT, reason)
                self._gone[row] = True

    async def _free_old(self, began: float) -> None:
        policy, now = self.policy, self.report.at
        mask = selection.old(self.records.table.columns, policy, now, began) & ~self._gone
        errors = []
        for row in selection.order(self.records.table.columns, mask, policy, now).tolist():
            error = await self._remove(row, AGE, f"unused for more than {Duration(policy.max_age)}")
            if error:
                errors.append(error)
            else:
                self.report.freed_by_age += self._verdicts[row].freed
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
        errors: list[str] = []
        before = self.report.available if self.policy.accounting == MEASURED else None
        async for row in self._candidates(wanted, every=before is not None):
            error = await self._remove(row, SPACE, "for space")
            if error:
                errors.append(error)
                continue
            freed = self._verdicts[row].freed
            if before is not None and not self.report.dry_run:
                after = await self._available()
                freed = max(after - before, 0) if after is not None else freed
                before = after if after is not None else before
                self._verdicts[row].freed = freed
            self.report.freed += freed
            if self.report.freed >= wanted:
                break
        if errors:
            raise ImageGCFailure(
                "delete_failed_space",
                f"wanted to free {wanted} bytes, but freed {self.report.freed} bytes space with errors in "
                f"image deletion: {aggregate(errors)}",
            )

    async def _free_inodes(self, wanted: int) -> None:
        """Image sizes say nothing of inodes: the file system is asked after each removal."""
        errors: list[str] = []
        async for row in self._candidates(selection.EVERYTHING):
            error = await self._remove(row, SPACE, "for inodes")
            if error:
                errors.append(error)
                continue
            self.report.freed += self._verdicts[row].freed
            reading = await self._reading()
            if self.policy.enough_inodes(reading.inodes or 0, reading.inodes_free or 0):
                break
        if errors:
            raise ImageGCFailure(
                "delete_failed_space",
                f"wanted to free {wanted} inodes, encountered errors in image deletion: {aggregate(errors)}",
            )

    async def _candidates(self, wanted: int, *, every: bool = False) -> AsyncIterator[int]:
        """Rows for space in order; after a cut that did not free enough, the next ones."""
        columns, now = self.records.table.columns, self.report.at
        mask = selection.spare(columns, self.policy, now) & ~self._gone
        while True:
            target = selection.EVERYTHING if every else max(wanted - self.report.freed, 0)
            rows = selection.order(columns, mask, self.policy, now, target)
            if not len(rows):
                return
            mask[rows] = False
            for row in rows.tolist():
                yield row

    async def _remove(self, row: int, cause: str, why: str) -> str:
        """Remove one image, or in a dry run say so. Returns the error, if any."""
        image = self.records.image(row)
        key = self.records.key_of(image)
        self._gone[row] = True
        protected = self.store.protected(image)
        if protected:
            self._judge(row, KEPT, protected)
            return ""
        self.report.attempted.append(key)
        if self.report.dry_run:
            self._judge(row, WOULD_REMOVE, why, image.size, cause)
            return ""
        try:
            await self.store.remove(image)
        except KubengineError as error:
            self._judge(row, FAILED, error.message, cause=cause)
            return error.message
        self._judge(row, REMOVED, why, image.size, cause)
        self.report.removed.append(key)
        self.records.forget(key)
        return ""

    async def _available(self) -> int | None:
        try:
            return (await self.store.filesystem()).available
        except (KubengineError, OSError):
            return None

    def _judge(self, row: int, verdict: str, reason: str, freed: int = 0, cause: str = "") -> None:
        image = self.records.image(row)
        key = self.records.key_of(image)
        self._verdicts[row] = ImageVerdict(key, image.names, image.size, verdict, reason, freed, cause)

    def _conclude(self) -> None:
        columns, now = self.records.table.columns, self.report.at
        untouched: NDArray[np.int64] = np.flatnonzero(columns.live)
        for row in untouched.tolist():
            if row not in self._verdicts:
                reason = selection.why_kept(columns, row, self.policy, now)
                self._judge(row, KEPT, reason or "not needed to reach the low threshold")
        self.report.images = list(self._verdicts.values())
