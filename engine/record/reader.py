"""Read a record: its rows in order, and what it lacks."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from engine.api.errors import InvalidInput
from engine.record.blocks import RecordRow, TornRecord, decode_blocks
from engine.record.writer import BEGAN, ENDED, LOST, STREAM, segments


class Record(msgspec.Struct):
    """Read a record's rows; `gaps` say in words what it lacks, once `rows` has been read to its end."""

    directory: Path
    gaps: list[str] = msgspec.field(default_factory=list)

    def rows(self, wanted: Callable[[RecordRow], bool] = lambda row: True) -> Iterator[RecordRow]:
        """Yield the wanted rows in the order of writing. Raise `InvalidInput` if this is no record."""
        self.gaps.clear()
        found = segments(self.directory) if self.directory.is_dir() else []
        if not found:
            raise InvalidInput("has no record (files named *.krec)", subject=str(self.directory))
        open_until: float | None = None
        for segment in found:
            for row in self._segment(segment):
                if row.stream == STREAM:
                    if row.name == BEGAN and open_until is not None:
                        self._unclosed(open_until)
                    elif row.name == LOST:
                        self.gaps.append(f"{moment(row.time)}: {row.text}")
                open_until = None if row.stream == STREAM and row.name == ENDED else row.time
                if wanted(row):
                    yield row

    def _segment(self, segment: Path) -> Iterator[RecordRow]:
        try:
            data = segment_content(segment)
        except OSError as error:
            self.gaps.append(f"{segment.name}: cannot be read: {error.strerror}")
            return
        try:
            for rows in decode_blocks(data):
                yield from rows
        except TornRecord as torn:
            self.gaps.append(
                f"{segment.name}: its last {torn.size} bytes are not a whole block: what was recorded after "
                "the rows before them is lost"
            )

    def _unclosed(self, until: float) -> None:
        self.gaps.append(
            f"{moment(until)}: the recorder ended without closing the record: up to a second is lost"
        )


def segment_content(segment: Path) -> bytes:
    """Return the bytes of a regular file; anything else could keep the reader waiting."""
    with open(segment, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(None, "not a regular file", str(segment))
        return file.read()


def moment(at: float) -> str:
    """Return a time as text, in UTC and to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
