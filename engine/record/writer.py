"""Append rows to a record, once a second. A process that is killed loses at most the last second.

A record is a directory of segments, `<Unix milliseconds>.krec`. A segment that is full, or an hour old, is
closed and written again in fewer blocks, and the oldest are removed while the directory is larger or older
than allowed. Rows that cannot be written, as on a full disk, are kept for a while and then dropped; the
record itself says how many, from when to when, and why.

Rows say what changes. So that the rest of a record can be played without its first segments, recorders add
a row with the whole state whenever `state_due` says so.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from engine.api.errors import InvalidInput, Refused
from engine.api.kubengine_config import RecordSection
from engine.api.quantity import decimal
from engine.record.blocks import RecordRow, TornRecord, decode_blocks, encode_block

SUFFIX: Final = ".krec"
STREAM: Final = "record"
BEGAN, ENDED, LOST = "began", "ended", "lost"
FLUSH_SECONDS: Final = 1.0
MOST_WAITING: Final = 20_000
"""Rows that wait for a disk that takes none."""
SEGMENTS: Final = 8
SEGMENT_SECONDS: Final = 3600.0
BLOCK_ROWS: Final = 4096
"""Rows of a block of a closed segment."""
STATE_SHARE: Final = 8
"""A row of state is due after so many times the bytes of the last one, so that they take a small part."""
LEAST_BYTES: Final = 64 * 1024
_PACKED: Final = ".packed"
"""Suffix of a closed segment while it is written again; a file that is left over is removed at a start."""
_OPEN: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

log = logging.getLogger("kubengine.record")


class _StateRows(msgspec.Struct):
    """Follow the rows of state: whether one is `waiting` to be written; the bytes of the last block with one,
    when it was written, and the bytes `since`; whether a segment began after it, or rows were `lost`.
    """

    waiting: bool = False
    size: int = 0
    at: float = 0.0
    since: int = 0
    new_segment: bool = False
    lost: bool = False

    def written(self, size: int, now: float, *, lost: bool) -> None:
        """Take a block that was written, after rows were lost or not."""
        if self.waiting:
            self.size, self.at, self.since = size, now, 0
            self.waiting = self.new_segment = False
            # The row itself may be among the lost ones.
            self.lost = lost
        else:
            self.since += size
            self.lost = self.lost or lost


class RecordWriter:
    """Write to `directory`; call `add` from one thread and `flush` from any. `clock` returns Unix seconds.

    Raise `InvalidInput` for limits that limit nothing.
    """

    def __init__(
        self, directory: Path, *, max_bytes: int, max_age: float, clock: Callable[[], float]
    ) -> None:
        if max_bytes < LEAST_BYTES:
            raise InvalidInput(f"expected at least {LEAST_BYTES} bytes", subject="record.maxSize")
        if max_age <= 0:
            raise InvalidInput("expected more than 0s", subject="record.maxAge")
        self.directory = directory
        self._most_bytes, self._most_age, self._clock = max_bytes, max_age, clock
        self._waiting: list[RecordRow] = []
        self._dropped = 0
        self._dropped_from = 0.0
        self._trouble = ""
        self._writing = threading.Lock()
        self._segment: Path | None = None
        self._segment_began = 0.0
        self._state = _StateRows()
        self.add(RecordRow(time=clock(), stream=STREAM, name=BEGAN, inputs={"pid": os.getpid()}))

    def open(self) -> None:
        """Make the directory. Raise `Refused` if it cannot be made."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for left in self.directory.glob(f"*{_PACKED}"):
                left.unlink()
        except OSError as error:
            text = f"cannot be made: {error.strerror}"
            raise Refused(text, subject=str(self.directory), errno=error.errno) from None

    @property
    def state_due(self) -> bool:
        """Tell whether the recorder has to add its whole state: at the beginning, after rows were lost, and
        in a new segment if enough was written, or an eighth of the record's age has passed, since the last.
        """
        state = self._state
        if state.waiting:
            return False
        if not state.size or state.lost:
            return True
        old = not 0 <= self._clock() - state.at < self._most_age / SEGMENTS
        return state.new_segment and (old or state.since >= STATE_SHARE * state.size)

    def add_state(self, row: RecordRow) -> None:
        """Take the row that holds the whole state."""
        self.add(row)
        self._state.waiting = True

    def add(self, row: RecordRow) -> None:
        """Take a row. It is on disk after the next `flush`."""
        if len(self._waiting) >= MOST_WAITING:
            self._dropped_from = self._dropped_from or row.time
            self._dropped += 1
            return
        self._waiting.append(row)

    def flush(self) -> None:
        """Append the rows that wait as one block. What cannot be written waits for the next call."""
        with self._writing:
            rows = self._waiting
            if not rows:
                return
            self._waiting = []
            if self._dropped:
                rows.append(self._gap())
            try:
                block = encode_block(rows)
                self._append(block)
            except OSError as error:
                self._failed(error)
                rows = rows[:-1] if rows[-1].name == LOST and rows[-1].stream == STREAM else rows
                self._waiting = rows + self._waiting
                return
            self._state.written(len(block), self._clock(), lost=bool(self._dropped))
            self._dropped, self._dropped_from = 0, 0.0
            if self._trouble:
                log.info("%s: recording succeeds again", self.directory)
            self._trouble = ""

    def close(self) -> None:
        """Add the row of the recorder's end, and write all pending rows."""
        self.add(RecordRow(time=self._clock(), stream=STREAM, name=ENDED))
        self.flush()

    def _gap(self) -> RecordRow:
        text = f"{self._dropped} rows were lost: {self._trouble}"
        inputs = {"rows": self._dropped, "from": self._dropped_from, "to": self._clock()}
        return RecordRow(time=self._clock(), stream=STREAM, name=LOST, text=text, inputs=inputs)

    def _failed(self, error: OSError) -> None:
        trouble = error.strerror or str(error)
        if trouble != self._trouble:
            log.warning("%s: the record cannot be written: %s", self.directory, trouble)
        self._trouble = trouble
        self._segment = None

    def _append(self, block: bytes) -> None:
        now = self._clock()
        segment = self._current(now, len(block))
        descriptor = os.open(segment, _OPEN, 0o600)
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise OSError(None, "not a regular file", str(segment))
            left = memoryview(block)
            try:
                while left:
                    left = left[os.write(descriptor, left) :]
                os.fdatasync(descriptor)
            except OSError:
                # Half a block would hide every later one from readers.
                with suppress(OSError):
                    os.ftruncate(descriptor, about.st_size)
                    # Each attempt begins a segment; a disk that is full for hours would get thousands.
                    if not about.st_size:
                        segment.unlink()
                raise
        finally:
            os.close(descriptor)

    def _current(self, now: float, size: int) -> Path:
        """Return the segment for a block, a new one if the last is full or old, and remove old ones."""
        segment = self._segment
        if segment is not None:
            full = _size(segment) + size > self._most_bytes // SEGMENTS
            # A clock that was set back makes a new segment too, so that their names stay in order of writing.
            old = not 0 <= now - self._segment_began < min(SEGMENT_SECONDS, self._most_age)
            if not (full or old):
                return segment
        if segment is not None:
            _pack(segment)
        latest = max((began_at(path) for path in segments(self.directory)), default=0.0)
        name = max(round(now * 1000), round(latest * 1000) + 1)
        self._segment = self.directory / f"{name:015d}{SUFFIX}"
        self._state.new_segment = True
        self._segment_began = now
        self._remove_old(now)
        return self._segment

    def _remove_old(self, now: float) -> None:
        kept = segments(self.directory)
        sizes = {path: _size(path) for path in kept}
        total = sum(sizes.values())
        # The last segment stays: one large block would otherwise leave an empty record.
        for path, following in pairwise(kept):
            ended = began_at(following)
            if total <= self._most_bytes * (SEGMENTS - 1) // SEGMENTS and now - ended < self._most_age:
                break
            with suppress(OSError):
                path.unlink()
            total -= sizes[path]


def _pack(segment: Path) -> None:
    """Write a closed segment again with large blocks, which take less space and are read faster.

    A segment that cannot be read or written stays as it is.
    """
    packed = segment.with_suffix(_PACKED)
    try:
        rows = [row for block in decode_blocks(segment.read_bytes()) for row in block]
        blocks = (encode_block(rows[at : at + BLOCK_ROWS]) for at in range(0, len(rows), BLOCK_ROWS))
        with open(packed, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            for block in blocks:
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        packed.replace(segment)
    except (OSError, TornRecord):
        with suppress(OSError):
            packed.unlink()


def record_writer(section: RecordSection, clock: Callable[[], float]) -> RecordWriter:
    """Return the writer of a configured record. Raise `InvalidInput` for limits that limit nothing."""
    return RecordWriter(
        Path(section.directory),
        max_bytes=section.max_size.value,
        max_age=float(section.max_age),
        clock=clock,
    )


def segments(directory: Path) -> list[Path]:
    """Return the segments of a record, oldest first."""
    return sorted(path for path in directory.glob(f"*{SUFFIX}") if decimal(path.stem) is not None)


def began_at(segment: Path) -> float:
    """Return when a segment began, in Unix seconds."""
    return int(segment.stem) / 1000


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
