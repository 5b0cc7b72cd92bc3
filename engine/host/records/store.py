"""Stores small records in one file: appended in groups, each group synced once.

A record of its own file costs a temporary file, two syncs and a rename; records of pods that start at the
same time share one write and one sync here. The file is written again without its outdated lines when these
outweigh the others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from engine.api.errors import Bug, KubengineError, Refused, Unavailable
from engine.host.checksummed_file import SHORTAGES, read_again, set_aside
from engine.host.files import remove_unfinished, replace_file
from engine.host.records import lines
from engine.host.records.lines import Place
from engine.host.state_file import STEP_SECONDS, FaultPoint, no_fault
from engine.host.tasks import Tasks, WriteSchedule, resolve

OUTDATED_BYTES: Final = 1 << 18
"""Bytes of outdated lines that are always left in the file."""
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_ALL: Final = ""
"""A caller that waits for this key waits for every record."""
WITHOUT: Final = "what was recorded there is unknown"
T = TypeVar("T")

log = logging.getLogger("kubengine.files")


class StoredNames:
    """Name keys in the file; by default each key is its own name.

    `of` and `sync` are called in the writing thread, for each record and once before a group is synced; they
    may raise `OSError` or `Refused`. `key` returns None for a record that nothing needs any longer.
    """

    def of(self, key: str) -> str:
        return key

    def sync(self) -> None:
        """Return when the objects that the names refer to are on disk."""

    def key(self, name: str) -> str | None:
        return name


class RecordStore:
    """Keep the records of one file, and write them with a background task.

    `open` reads the file; until then there are no records. `put` returns when the record is on disk,
    `put_soon` at once: such a record is written with the next ones and survives the end of the process, but
    not always a power cut. `get` returns what was put last, written or not.
    """

    def __init__(
        self,
        path: Path,
        tasks: Tasks | None = None,
        *,
        names: StoredNames | None = None,
        fault: FaultPoint = no_fault,
    ) -> None:
        self.path = path
        self.writes = 0
        self._names = names or StoredNames()
        self._fault = fault
        self._places: dict[str, Place] = {}
        self._lock = threading.Lock()
        """Held where `_places` and `_file` must agree: the writing thread replaces both."""
        self._file = -1
        self._end = 0
        self._live = 0
        self._doubtful = False
        """Whether the file may not hold what was written: after a failed sync the kernel drops it, and the
        next sync succeeds."""
        self._unwritten: dict[str, bytes] = {}
        self._under_way: dict[str, bytes] = {}
        self._waiters: list[tuple[str, asyncio.Future[None]]] = []
        self._schedule = WriteSchedule()
        self._writer = (tasks or Tasks()).task("records")

    # Life cycle

    def open(self) -> None:
        """Read the file of an earlier agent. A damaged file is set aside, and its other records are kept.

        Raises `Unavailable` if the machine lacks the memory or descriptors to read it.
        """
        remove_unfinished(self.path.parent)
        data = self._read()
        found = lines.scan(data)
        keys = {name: self._names.key(name) for name in found.places}
        self._places = {key: found.places[name] for name, key in keys.items() if key is not None}
        self._live = sum(length for _, length in self._places.values())
        self._end = found.end
        if found.end < len(data):
            log.warning("%s: its last line is unfinished, as after a power cut; it is dropped", self.path)
        if found.damaged:
            at = ", ".join(map(str, found.damaged[:5]))
            count = len(found.damaged)
            aside = set_aside(self.path, move=False)
            log.error("%s: %d lines are damaged, at bytes %s; %s; %s", self.path, count, at, aside, WITHOUT)
        if found.damaged or self._mostly_outdated:
            try:
                self._write_again(data)
            except (OSError, Refused) as error:
                log.error("%s: %s; it is used as it is", self.path, error)
                self._doubtful = True
        if self._places and self._file < 0:
            self._open_as_it_is()

    def _open_as_it_is(self) -> None:
        """Open the file to append to it, cut after its last whole line.

        A full or read-only disk does not keep the agent from starting, since only the agent can evict what
        fills it: the records are read, and new ones refused.
        """
        try:
            self._file = os.open(self.path, _OPEN)
            os.ftruncate(self._file, self._end)
        except OSError as error:
            log.error("%s", _as_failure(error, self.path))
            self._doubtful = True
        try:
            if self._file < 0:
                self._file = os.open(self.path, _READ)
        except OSError as error:
            raise Unavailable(f"cannot be opened: {error.strerror}", subject=str(self.path)) from error

    def start(self) -> None:
        self._writer.start(self._write_when_wanted)

    async def stop(self) -> None:
        """Write what is still unwritten, then end. Raises `Refused` if it cannot be written."""
        try:
            if self._writer.wanted and (self._unwritten or self._under_way):
                await self.flush()
        finally:
            await self._writer.stop()
            for _, waiter in self._waiters:
                resolve(waiter, Refused("its writer has stopped", subject=str(self.path)))
            with self._lock:
                file, self._file = self._file, -1
            if file >= 0:
                os.close(file)

    # Records

    def read(self, key: str, decode: Callable[[bytes], T], *, without: str) -> T | None:
        """Return what `decode` makes of the record; None if there is none that can be trusted.

        Anything that `decode` raises means damage, which is logged with what happens `without` the record.
        """
        value = self.get(key)
        if value is None:
            return None
        try:
            return decode(value)
        except Exception as error:
            log.error("%s: the record %s: %s; %s", self.path, key, error, without)
            return None

    def get(self, key: str) -> bytes | None:
        """Return the record; None if there is none, or it can no longer be read. May be called in any
        thread.
        """
        for kept in (self._unwritten, self._under_way):
            if (value := kept.get(key)) is not None:
                return value
        with self._lock:
            place = self._places.get(key)
            line = self._line(place) if place is not None and self._file >= 0 else None
        return lines.read(line)[1] if line is not None else None

    async def put(self, key: str, value: bytes) -> None:
        """Store a record, and return when it is on disk. Raises `Refused` if it cannot be written."""
        if key in self._unwritten or key in self._under_way or self.get(key) != value:
            self._unwritten[key] = value
            await self._commit_with(key, asyncio.get_running_loop().create_future())

    def put_soon(self, key: str, value: bytes) -> None:
        """Store a record without waiting for it."""
        self._unwritten[key] = value
        self._schedule.want()

    async def flush(self) -> None:
        """Return when every record is on disk. Raises `Refused` if one cannot be written."""
        await self._commit_with(_ALL, asyncio.get_running_loop().create_future())

    def discard(self, key: str) -> None:
        """Forget a record whose name a later agent will not know either (`StoredNames.key`)."""
        self._unwritten.pop(key, None)
        with self._lock:
            self._under_way.pop(key, None)
            place = self._places.pop(key, None)
            self._live -= place[1] if place is not None else 0

    # Writing

    async def _commit_with(self, key: str, waiter: asyncio.Future[None]) -> None:
        if not self._writer.wanted:
            raise Refused("its writer has stopped", subject=str(self.path))
        self._waiters.append((key, waiter))
        self._schedule.hurry()
        await waiter

    async def _write_when_wanted(self) -> None:
        while True:
            await self._schedule.due()
            waiters, self._waiters = self._waiters, []
            # What is stored from here on belongs to the next group; `get` finds both.
            self._under_way, self._unwritten = self._unwritten, {}
            group, failures = dict(self._under_way), dict[str, KubengineError]()
            try:
                with self._writer.step(STEP_SECONDS):
                    failures = await asyncio.to_thread(self._append, group, sync=bool(waiters))
            except Exception as error:
                self._writer.failed(error)
                failures = dict.fromkeys(group, _as_failure(error, self.path))
                awaited = {key for key, _ in waiters}
                late = {key: value for key, value in self._under_way.items() if key not in awaited}
                self._unwritten = late | self._unwritten  # written with the next records
            self._under_way = {}
            for key, waiter in waiters:
                failure = next(iter(failures.values()), None) if key == _ALL else failures.get(key)
                resolve(waiter, failure)

    def _append(self, group: Mapping[str, bytes], *, sync: bool) -> dict[str, KubengineError]:
        """Write records; return those that failed alone, because they have no names.

        Raises `OSError` or `Refused` if none could be written.
        """
        if self._file < 0 or self._doubtful or self._mostly_outdated:
            self._write_again(None)
        written: dict[str, bytes] = {}
        failures: dict[str, KubengineError] = {}
        for key, value in group.items():
            try:
                written[key] = lines.line(self._names.of(key), value)
            except (OSError, Refused) as error:
                failures[key] = _as_failure(error, self.path)
                log.warning("cannot record %s: %s", key, failures[key])
        if sync:
            self._names.sync()
        # Until the sync has succeeded: if it fails, the kernel drops the pages and a second sync would
        # succeed.
        self._doubtful = True
        self._write(b"".join(written.values()))
        self._fault("records written")
        if sync:
            # Without the times of the file, which nobody reads; its length is synced when it has grown.
            os.fdatasync(self._file)
        self._fault("records synced")
        self._doubtful = False
        self.writes += 1
        self._place(written)
        return failures

    def _write(self, data: bytes) -> None:
        at, left = self._end, memoryview(data)
        try:
            while left:
                count = os.pwrite(self._file, left, at)
                at, left = at + count, left[count:]
        except OSError:
            # So that nothing of a half-written group is found after a crash.
            os.ftruncate(self._file, self._end)
            self._doubtful = False
            raise

    def _place(self, written: Mapping[str, bytes]) -> None:
        with self._lock:
            for key, line in written.items():
                if key in self._under_way:  # not discarded meanwhile
                    before = self._places.get(key)
                    self._live += len(line) - (before[1] if before is not None else 0)
                    self._places[key] = (self._end, len(line))
                self._end += len(line)

    @property
    def _mostly_outdated(self) -> bool:
        return self._end - self._live > max(OUTDATED_BYTES, self._live)

    def _write_again(self, data: bytes | None) -> None:
        """Replace the file by one with the newest line of each key; `data` is the whole file, if at hand.

        Raises `OSError` or `Refused`, and leaves everything as it was then.
        """
        places: dict[str, Place] = {}
        content: list[bytes] = []
        end = 0
        for key, (offset, length) in list(self._places.items()):
            line = data[offset : offset + length] if data is not None else self._line((offset, length))
            if line is not None:
                places[key] = (end, length)
                content.append(line)
                end += length
        replace_file(self.path, b"".join(content))
        self._fault("records written again")
        # The old descriptor still refers to the replaced file.
        file = os.open(self.path, _OPEN)
        with self._lock:
            before, self._file = self._file, file
            self._places = {key: place for key, place in places.items() if key in self._places}
            self._live = sum(length for _, length in self._places.values())
            self._end, self._doubtful = end, False
        if before >= 0:
            os.close(before)

    # Reading

    def _line(self, place: Place) -> bytes | None:
        """Return a line, read once more after an error; None if it was damaged after it was written."""
        offset, length = place
        for last in (False, True):
            try:
                line = os.pread(self._file, length, offset)
                lines.read(line)
            except (OSError, ValueError) as error:
                if last:
                    log.error("%s: the record at byte %d: %s; %s", self.path, offset, error, WITHOUT)
            else:
                return line
        return None

    def _read(self) -> bytes:
        try:
            return read_again(self.path)
        except FileNotFoundError:
            return b""
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in SHORTAGES:
                raise Unavailable(f"cannot be read: {error.strerror}", subject=str(self.path)) from error
            log.error("%s: %s; %s; %s", self.path, error, set_aside(self.path), WITHOUT)
            return b""


def _as_failure(error: Exception, path: Path) -> KubengineError:
    if isinstance(error, OSError):
        text = f"cannot write: {error.strerror or error}"
        return Refused(text, subject=str(error.filename or path), errno=error.errno)
    if isinstance(error, KubengineError):
        return error
    return Bug(f"cannot write: {type(error).__name__}: {error}", subject=str(path))
