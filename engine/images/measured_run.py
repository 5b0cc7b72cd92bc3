"""Holds what a run of image GC was decided by, so that a record can repeat it. Pure.

Images that a container uses, or that the runtime pins, are left out: no policy removes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from engine.api.decisions import Measured
from engine.images.records import ImageRecords
from engine.images.report import ImageGCReport

STREAM: Final = "images"
_PROTECTED: Final = 1
_FAILED: Final = 2
_REMOVED: Final = 4
_UNKNOWN: Final = -1
_MICROSECONDS: Final = 1e6
_FIELDS: Final = 4


class UnusedImage(msgspec.Struct, frozen=True):
    """Hold an image that may go: its key, first name and size, and when it was first seen and last used.

    One of our own policies kept a `protected` one, the runtime did not remove a `failed` one, and the run
    removed a `removed` one.
    """

    key: str
    name: str
    size: int
    detected: float
    used: float
    protected: bool = False
    failed: bool = False
    removed: bool = False


class MeasuredRun(msgspec.Struct, frozen=True):
    """Hold one run: times in seconds of the manager's clock, amounts in bytes, None where not read.

    The manager runs since `began`. `images` are in the order of the table, which decides between equals.
    """

    trigger: str
    at: float
    began: float
    capacity: int | None
    available: int | None
    images: Sequence[UnusedImage]

    def measured(self) -> Measured:
        """Return the row of a record."""
        values = [round(self.at * _MICROSECONDS), round(self.began * _MICROSECONDS)]
        values += [_UNKNOWN if amount is None else amount for amount in (self.capacity, self.available)]
        for image in self.images:
            flags = image.protected * _PROTECTED | image.failed * _FAILED | image.removed * _REMOVED
            times = (round(time * _MICROSECONDS) for time in (image.detected, image.used))
            values += (image.size, *times, flags)
        keys = " ".join(image.key for image in self.images)
        return Measured(
            STREAM, self.trigger, keys, values, inputs={"names": [image.name for image in self.images]}
        )


def measured_run(trigger: str, keys: str, values: Sequence[int], inputs: Mapping[str, Any]) -> MeasuredRun:
    """Return the run of a recorded row. Raise ValueError for a row of another shape."""
    at, began, capacity, available, *rest = values
    columns = (rest[number::_FIELDS] for number in range(_FIELDS))
    images = [
        UnusedImage(
            key,
            str(name),
            size,
            detected / _MICROSECONDS,
            used / _MICROSECONDS,
            bool(flags & _PROTECTED),
            bool(flags & _FAILED),
            bool(flags & _REMOVED),
        )
        for key, name, size, detected, used, flags in zip(
            keys.split(), inputs.get("names", ()), *columns, strict=True
        )
    ]
    known = [None if amount == _UNKNOWN else amount for amount in (capacity, available)]
    return MeasuredRun(trigger, at / _MICROSECONDS, began / _MICROSECONDS, known[0], known[1], images)


def unused_images(records: ImageRecords) -> list[UnusedImage]:
    """Return the images that a run may remove, as they are before it."""
    cells, rows = records.table.cells, records.unused()
    return [
        UnusedImage(
            key,
            next(iter(records.image(row).names), ""),
            cells.size[row],
            cells.first_detected[row],
            cells.last_used[row],
        )
        for key, row in zip(records.keys_of(rows), rows, strict=True)
    ]


def run_of(
    report: ImageGCReport, began: float, before: Sequence[UnusedImage], protected: Collection[str]
) -> MeasuredRun:
    """Return a run that has ended; `protected` are the keys that our own policies kept."""
    removed = frozenset(report.removed)
    images = [
        replace(
            image,
            protected=image.key in protected,
            failed=image.key in report.failed,
            removed=image.key in removed,
        )
        for image in before
    ]
    return MeasuredRun(report.trigger, report.at, began, report.capacity, report.available, images)
