"""Runs one garbage collection over the records: the pass for age, then the pass for space.

`ImageRemoval` lists, measures and removes. Nothing in a run depends on the time that it takes; `now` is an
argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, count
from typing import Final, NamedTuple, Protocol

import msgspec

from engine.api.amounts.sizes import binary_size
from engine.api.duration import Duration
from engine.api.errors import KubengineError
from engine.images import selection
from engine.images.layers import Layers, removal_order
from engine.images.policy import LAYERS, MEASURED, ImageGCPolicy
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
from engine.tables import ImageCells

FOR_SPACE: Final = "for space"


class FilesystemReading(msgspec.Struct, frozen=True):
    """Hold the state of the image file system in bytes and inodes; None where unknown."""

    capacity: int | None
    available: int | None
    inodes: int | None = None
    inodes_free: int | None = None


class ImageRemoval(Protocol):
    """Do what a run needs of the outside."""

    async def filesystem(self) -> FilesystemReading:
        """Read the image file system. Raises `KubengineError` or `OSError`."""

    async def remove(self, images: Sequence[SeenImage], became: list[KeptImage | None]) -> None:
        """Remove images one after another.

        `became` gets an entry for each as soon as its fate is known: None for a removed one.
        """

    async def layers(self, image: SeenImage) -> Layers:
        """Return the layers of an image; one layer of its own if unknown."""

    def protected(self, image: SeenImage) -> str:
        """Return why one of our own policies keeps the image, or an empty text."""


def nothing_protects(_: SeenImage) -> str:
    """Return an empty text: the `protected` of a store without policies of our own."""
    return ""


class KeptImage(NamedTuple):
    """Explain why an image was not removed: the removal `failed`, or a policy of this agent protected it."""

    reason: str
    failed: bool = True


class Judged(NamedTuple):
    """Hold the fate of an image, as in `ImageVerdict`."""

    verdict: str
    reason: str
    cause: str = ""


class Account(NamedTuple):
    """Hold an examined image with its fate, and the bytes that it gave back."""

    image: SeenImage
    judged: Judged
    freed: int = 0


class Outcomes(msgspec.Struct):
    """Hold the fate of the images that were to be removed, by row.

    `chosen` has all of them in order, as if none `failed`; `gone` are the removed ones. `measured` is what a
    removal gave back where that was measured; otherwise it gave the image's size.
    """

    chosen: dict[int, Judged] = msgspec.field(default_factory=dict)
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    gone: list[int] = msgspec.field(default_factory=list)
    measured: dict[int, int] = msgspec.field(default_factory=dict)

    def account(self, row: int, image: SeenImage) -> Account:
        judged = self.chosen[row]
        if row in self.failed:
            return Account(image, Judged(FAILED, self.failed[row], judged.cause))
        return Account(image, judged, self.measured.get(row, image.size))


class Collection:
    """Run one collection. `report` grows with it; the records forget removed images at its end."""

    def __init__(
        self,
        records: ImageRecords,
        policy: ImageGCPolicy,
        store: ImageRemoval,
        report: ImageGCReport,
    ) -> None:
        self.records, self.policy, self.store, self.report = records, policy, store, report
        self._images: list[SeenImage] = []
        self._outcomes = Outcomes()
        self._kept: dict[int, str] = {}
        """By row: why our own policies keep the image."""

    @property
    def actions(self) -> int:
        """Return how many images were removed, or should have been."""
        return 0 if self.report.dry_run else len(self._outcomes.chosen)

    def acted(self, most: int) -> Callable[[], Iterator[Account]]:
        """Return the last of them, in order; may be called after the run."""
        outcomes = self._outcomes
        rows = list(outcomes.chosen)[-most:]
        images = [self._images[row] for row in rows]
        return lambda: map(outcomes.account, rows, images)

    def protected(self) -> list[tuple[SeenImage, str]]:
        """Return the images that `Store.protected` kept, with its reasons."""
        return [(self._images[row], reason) for row, reason in self._kept.items()]

    async def garbage_collect(self, began: float) -> None:
        """Run the periodic collection. Raises `ImageGCFailure`; the report is complete either way."""
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
        """Word that too little could be removed, as kubelet v1.36 does."""
        capacity = reading.capacity or 0
        used = self.policy.used_percent(capacity, reading.available or 0)
        return (
            "Insufficient free disk space on the node's image filesystem "
            f"({used}% of {binary_size(capacity)} used). Failed to free sufficient space by deleting unused "
            f"images (freed {self.report.freed} bytes). Investigate disk usage, as it could be used by "
            "active images, logs, volumes, or other data."
        )

    async def delete_unused(self) -> None:
        """Remove everything that may go, for eviction. The minimum age still holds."""
        self._begin()
        self.report.wanted = selection.EVERYTHING
        try:
            await self._free_space(selection.EVERYTHING)
        finally:
            self._conclude()

    def _begin(self) -> None:
        self._images = self.records.images()
        protected = self.store.protected
        # Nodes without policies of their own do not pay for asking about each image.
        if protected is nothing_protects:
            return
        for row in self.records.unused():
            reason = protected(self._images[row])
            if reason:
                self._kept[row] = reason

    def _undecided(self, mask: bytearray) -> bytearray:
        """Clear the rows that have been decided, and return `mask`."""
        selection.leave_out(mask, (*self._outcomes.chosen, *self._kept))
        return mask

    async def _free_old(self, began: float) -> None:
        policy, now = self.policy, self.report.at
        if not selection.may_be_old(policy, now, began):
            return
        cells = self.records.table.cells
        rows = selection.order(cells, self._undecided(selection.old(cells, policy, now, began)), policy, now)
        gone = await self._remove(rows, AGE, f"unused for more than {Duration(policy.max_age)}")
        self.report.freed_by_age = self._sizes(gone)
        if self._outcomes.failed:
            raise ImageGCFailure(
                "delete_failed_age",
                f"wanted to free images older than {Duration(policy.max_age)}, "
                f"encountered errors in image deletion: {aggregate(self._outcomes.failed.values())}",
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
        if self.policy.accounting == MEASURED and not report.dry_run and report.available is not None:
            await self._free_measured(wanted, report.available)
        elif self.policy.order == LAYERS:
            await self._free_by_layers(wanted)
        else:
            await self._free_reported(wanted)
        if self._outcomes.failed:
            raise ImageGCFailure(
                "delete_failed_space",
                f"wanted to free {wanted} bytes, but freed {report.freed} bytes space with errors in "
                f"image deletion: {aggregate(self._outcomes.failed.values())}",
            )

    async def _free_reported(self, wanted: int) -> None:
        """Remove until the images' own sizes reach `wanted` bytes; one image if that is nothing."""
        cells, report = self.records.table.cells, self.report
        mask = self._undecided(selection.spare(cells, self.policy, report.at))
        while True:
            # In rounds: as many images as would be enough, then more of them if some could not be removed.
            missing = max(wanted - report.freed, 0)
            rows = selection.order(cells, mask, self.policy, report.at, missing)
            if not rows:
                return
            selection.leave_out(mask, rows)
            gone = await self._remove(rows, SPACE, FOR_SPACE)
            report.freed += self._sizes(gone)
            # One image is removed even if nothing is missing, as in the kubelet, which checks after each
            # removal.
            if gone and report.freed >= wanted:
                return

    async def _free_measured(self, wanted: int, before: int) -> None:
        """Remove until the file system, read after each removal, has `wanted` bytes more than `before`."""
        by_layers = self.policy.order == LAYERS
        for row in [row for row, _ in await self._by_layers()] if by_layers else self._candidates():
            if not await self._remove([row], SPACE, FOR_SPACE):
                continue
            # Layers may be shared with images that stay: only the file system tells what became free.
            after = await self._available()
            if after is not None:
                self._outcomes.measured[row] = max(after - before, 0)
                before = after
            self.report.freed += self._outcomes.measured.get(row, self._images[row].size)
            if self.report.freed >= wanted:
                return

    async def _free_by_layers(self, wanted: int) -> None:
        """Remove until the layers that no image uses any longer reach `wanted` bytes."""
        for row, frees in await self._by_layers():
            if await self._remove([row], SPACE, FOR_SPACE):
                self._outcomes.measured[row] = frees
                self.report.freed += frees
                if self.report.freed >= wanted:
                    return

    async def _by_layers(self) -> list[tuple[int, int]]:
        """Return the rows for space in order, each with the bytes that its removal frees after
        the ones before.
        """
        cells = self.records.table.cells
        here = _rows(cells.live)
        place = {row: number for number, row in enumerate(here)}
        layers = [await self.store.layers(self._images[row]) for row in here]
        mask = self._undecided(selection.spare(cells, self.policy, self.report.at))
        eligible = [place[row] for row in _rows(mask)]
        order = removal_order(layers, [cells.last_used[row] for row in here], eligible)
        return [(here[number], freed) for number, freed in order]

    async def _free_inodes(self, wanted: int) -> None:
        """Remove for inodes; image sizes do not tell, so the file system is read after each removal."""
        for row in self._candidates():
            gone = await self._remove([row], SPACE, "for inodes")
            self.report.freed += self._sizes(gone)
            if gone:
                reading = await self._reading()
                if self.policy.enough_inodes(reading.inodes or 0, reading.inodes_free or 0):
                    break
        if self._outcomes.failed:
            raise ImageGCFailure(
                "delete_failed_space",
                f"wanted to free {wanted} inodes, encountered errors in image deletion: "
                f"{aggregate(self._outcomes.failed.values())}",
            )

    def _candidates(self) -> list[int]:
        """Return all rows that may be removed for space, in order."""
        cells, now = self.records.table.cells, self.report.at
        mask = self._undecided(selection.spare(cells, self.policy, now))
        return selection.order(cells, mask, self.policy, now)

    async def _remove(self, rows: list[int], cause: str, why: str) -> list[int]:
        """Remove these images in order, or report that in a dry run; return the rows of the removed ones."""
        if self.report.dry_run:
            self._outcomes.chosen.update(dict.fromkeys(rows, Judged(WOULD_REMOVE, why, cause)))
            return rows
        became: list[KeptImage | None] = []
        try:
            await self.store.remove([self._images[row] for row in rows], became)
        finally:
            # Also if the run is cancelled halfway: what has been removed is reported.
            gone = self._take_note(rows[: len(became)], became, Judged(REMOVED, why, cause))
        return gone

    def _take_note(self, rows: list[int], became: list[KeptImage | None], judged: Judged) -> list[int]:
        gone = rows
        if any(became):
            stayed = {row: one for row, one in zip(rows, became, strict=True) if one is not None}
            self._kept.update((row, one.reason) for row, one in stayed.items() if not one.failed)
            self._outcomes.failed.update((row, one.reason) for row, one in stayed.items() if one.failed)
            rows = [row for row in rows if row not in self._kept]
            gone = [row for row in rows if row not in self._outcomes.failed]
        self._outcomes.chosen.update(dict.fromkeys(rows, judged))
        if gone:
            self._outcomes.gone += gone
            counts = self.report.removed_by
            counts[judged.cause] = counts.get(judged.cause, 0) + len(gone)
        return gone

    def _sizes(self, rows: list[int]) -> int:
        size = self.records.table.cells.size
        return sum(size[row] for row in rows)

    async def _available(self) -> int | None:
        try:
            return (await self.store.filesystem()).available
        except (KubengineError, OSError):
            return None

    def _conclude(self) -> None:
        report, cells = self.report, self.records.table.cells.copy()
        report.attempted += self.records.keys_of(self._outcomes.chosen)
        report.removed += self.records.keys_of(self._outcomes.gone)
        report.failed |= zip(
            self.records.keys_of(self._outcomes.failed), self._outcomes.failed.values(), strict=True
        )
        self.records.forget_rows(self._outcomes.gone)
        report.account = lambda: self._account(cells, report.at)

    def _account(self, cells: ImageCells, now: float) -> list[ImageVerdict]:
        """Return one verdict for each image: those decided, then the others."""
        images, kept = self._images, dict(self._kept)
        accounts = [self._outcomes.account(row, images[row]) for row in self._outcomes.chosen]
        for row in _rows(cells.live):
            if row not in kept and row not in self._outcomes.chosen:
                reason = selection.reason_to_keep(cells, row, self.policy, now)
                kept[row] = reason or "not needed to reach the low threshold"
        accounts += [Account(images[row], Judged(KEPT, reason)) for row, reason in kept.items()]
        return [
            ImageVerdict(
                self.records.key_of(image), image.names, image.size,
                judged.verdict, judged.reason, freed, judged.cause,
            )
            for image, judged, freed in accounts
        ]  # fmt: skip


def _rows(mask: Iterable[int]) -> list[int]:
    """Return the rows that a mask has, ascending."""
    return list(compress(count(), mask))
