"""One run of image GC over the records: the age pass, then the space pass, step by step.

The rules are here, the world is behind `ImageStore`: it lists, measures and removes. Nothing in a run
depends on the time that passes during it; `now` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

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
from engine.tables import ImageColumns

FOR_SPACE: Final = "for space"


@dataclass(frozen=True, slots=True)
class FilesystemReading:
    """The image file system now, in bytes and inodes; None where it could not be told."""

    capacity: int | None
    available: int | None
    inodes: int | None = None
    inodes_free: int | None = None


class ImageStore(Protocol):
    """What a run asks of the world."""

    async def filesystem(self) -> FilesystemReading:
        """Raises `KubengineError` or `OSError` if it cannot be read."""

    async def remove(self, images: Sequence[SeenImage], became: list[Stayed | None]) -> None:
        """Remove them one after another. `became` gets an entry for each as soon as that is known: None for
        one that has gone."""

    async def layers(self, image: SeenImage) -> Layers:
        """What it is made of; one layer of its own where nobody tells."""

    def protected(self, image: SeenImage) -> str:
        """Why our own policies keep the image, or an empty string."""


def nothing_protects(_: SeenImage) -> str:
    """`Store.protected` where no policy of ours is on."""
    return ""


class Stayed(NamedTuple):
    """Why an image has not gone; unless it `failed`, a policy of ours kept it at the last moment."""

    reason: str
    failed: bool = True


class Judged(NamedTuple):
    """What became of an image, as `ImageVerdict` says it."""

    verdict: str
    reason: str
    cause: str = ""


class Account(NamedTuple):
    """An image that was looked at, what became of it, and how many bytes that gave."""

    image: SeenImage
    judged: Judged
    freed: int = 0


@dataclass(slots=True)
class Outcomes:
    """What became of the images that were to go, by row: `chosen` has all, in their order, as if none
    `failed`; `gone` are those that were removed. `measured` is what a removal gave where that was looked at;
    else it gave the image's size."""

    chosen: dict[int, Judged] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    measured: dict[int, int] = field(default_factory=dict)

    def account(self, row: int, image: SeenImage) -> Account:
        judged = self.chosen[row]
        if row in self.failed:
            return Account(image, Judged(FAILED, self.failed[row], judged.cause))
        return Account(image, judged, self.measured.get(row, image.size))


class Collection:
    """A run in progress. `report` grows with it; the records forget what was removed when it ends."""

    def __init__(
        self,
        records: ImageRecords,
        policy: ImageGCPolicy,
        store: ImageStore,
        report: ImageGCReport,
    ) -> None:
        self.records, self.policy, self.store, self.report = records, policy, store, report
        self._images: list[SeenImage] = []
        self._outcomes = Outcomes()
        self._kept: dict[int, str] = {}
        """By row: why our own policies keep it."""

    @property
    def actions(self) -> int:
        """How many images were removed, or should have been."""
        return 0 if self.report.dry_run else len(self._outcomes.chosen)

    def acted(self, most: int) -> Callable[[], Iterator[Account]]:
        """The last of them, in their order; to be called when they are wanted, also after the run."""
        outcomes = self._outcomes
        rows = list(outcomes.chosen)[-most:]
        images = [self._images[row] for row in rows]
        return lambda: map(outcomes.account, rows, images)

    def protected(self) -> list[tuple[SeenImage, str]]:
        """The images that `Store.protected` kept, with its reasons."""
        return [(self._images[row], reason) for row, reason in self._kept.items()]

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
        for row in self.records.unused():
            reason = protected(self._images[row])
            if reason:
                self._kept[row] = reason

    def _undecided(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """`mask` without the rows whose images have been judged."""
        mask[[*self._outcomes.chosen, *self._kept]] = False
        return mask

    async def _free_old(self, began: float) -> None:
        policy, now = self.policy, self.report.at
        if not selection.may_be_old(policy, now, began):
            return
        mask = self._undecided(selection.old(self.records.table.columns, policy, now, began))
        rows = selection.order(self.records.table.columns, mask, policy, now)
        gone = await self._remove(rows.tolist(), AGE, f"unused for more than {Duration(policy.max_age)}")
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
        """Until the images' own sizes make up the `wanted` bytes; one goes if that is nothing."""
        columns, report = self.records.table.columns, self.report
        mask = self._undecided(selection.spare(columns, self.policy, report.at))
        while True:
            missing = max(wanted - report.freed, 0)
            rows = selection.order(columns, mask, self.policy, report.at, missing)
            if not len(rows):
                return
            mask[rows] = False
            gone = await self._remove(rows.tolist(), SPACE, FOR_SPACE)
            report.freed += self._sizes(gone)
            if gone and report.freed >= wanted:
                return

    async def _free_measured(self, wanted: int, before: int) -> None:
        """Until the file system, asked after each removal, has `wanted` bytes more than `before`."""
        by_layers = self.policy.order == LAYERS
        for row in [row for row, _ in await self._by_layers()] if by_layers else self._candidates():
            if not await self._remove([row], SPACE, FOR_SPACE):
                continue
            after = await self._available()
            if after is not None:
                self._outcomes.measured[row] = max(after - before, 0)
                before = after
            self.report.freed += self._outcomes.measured.get(row, self._images[row].size)
            if self.report.freed >= wanted:
                return

    async def _free_by_layers(self, wanted: int) -> None:
        """Until the layers that no image has any more make up the `wanted` bytes."""
        for row, frees in await self._by_layers():
            if await self._remove([row], SPACE, FOR_SPACE):
                self._outcomes.measured[row] = frees
                self.report.freed += frees
                if self.report.freed >= wanted:
                    return

    async def _by_layers(self) -> list[tuple[int, int]]:
        """Rows for space in order, each with the bytes that go with it when those before it have gone."""
        columns = self.records.table.columns
        here = np.flatnonzero(columns.live).tolist()
        place = {row: number for number, row in enumerate(here)}
        layers = [await self.store.layers(self._images[row]) for row in here]
        mask = self._undecided(selection.spare(columns, self.policy, self.report.at))
        eligible = [place[row] for row in np.flatnonzero(mask).tolist()]
        order = removal_order(layers, columns.last_used[here].tolist(), eligible)
        return [(here[number], freed) for number, freed in order]

    async def _free_inodes(self, wanted: int) -> None:
        """Image sizes say nothing of inodes: the file system is asked after each removal."""
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
        """All rows that may go for space, in order."""
        columns, now = self.records.table.columns, self.report.at
        mask = self._undecided(selection.spare(columns, self.policy, now))
        rows: list[int] = selection.order(columns, mask, self.policy, now).tolist()
        return rows

    async def _remove(self, rows: list[int], cause: str, why: str) -> list[int]:
        """Remove these images in their order, or in a dry run say so; the rows of those that have gone."""
        if self.report.dry_run:
            self._outcomes.chosen.update(dict.fromkeys(rows, Judged(WOULD_REMOVE, why, cause)))
            return rows
        became: list[Stayed | None] = []
        try:
            await self.store.remove([self._images[row] for row in rows], became)
        finally:
            gone = self._take_note(rows[: len(became)], became, Judged(REMOVED, why, cause))
        return gone

    def _take_note(self, rows: list[int], became: list[Stayed | None], judged: Judged) -> list[int]:
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
        sizes: list[int] = self.records.table.columns.size[rows].tolist()
        return sum(sizes)

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
        report.account = lambda: self._account(cells.columns(), report.at)

    def _account(self, columns: ImageColumns, now: float) -> list[ImageVerdict]:
        """One verdict for each image: those that were judged, and then the others."""
        images, kept = self._images, dict(self._kept)
        accounts = [self._outcomes.account(row, images[row]) for row in self._outcomes.chosen]
        for row in np.flatnonzero(columns.live).tolist():
            if row not in kept and row not in self._outcomes.chosen:
                reason = selection.why_kept(columns, row, self.policy, now)
                kept[row] = reason or "not needed to reach the low threshold"
        accounts += [Account(images[row], Judged(KEPT, reason)) for row, reason in kept.items()]
        return [
            ImageVerdict(
                self.records.key_of(image), image.names, image.size,
                judged.verdict, judged.reason, freed, judged.cause,
            )
            for image, judged, freed in accounts
        ]  # fmt: skip
