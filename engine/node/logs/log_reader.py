"""Reads a container's log from its file, and follows it across rotations while the container runs.

Reading and filtering happen in threads, so that a long log delays nobody else. inotify reports new output,
with one watch for all readers; a check each second covers what inotify misses, as in the kubelet.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from engine.api.errors import InvalidInput, KubengineError
from engine.host.inotify import FILES_CHANGED, IN_CREATE, IN_MODIFY, InotifyWatch
from engine.host.safe_open import open_regular, opened_parent
from engine.node.logs.container_logs import LogOptions, LogText

PIECE = 256 * 1024
LONGEST_LINE = 1 << 20
POLL_SECONDS = 1.0


class LogWatch:
    """Notify readers of changes in the directory of a log."""

    def __init__(self) -> None:
        self._watch: InotifyWatch | None = None
        self._readers: dict[Path, set[asyncio.Event]] = {}

    @contextmanager
    def changes(self, directory: Path) -> Iterator[asyncio.Event]:
        """Return an event that is set with each change; it is never set if the kernel grants no watch."""
        news = asyncio.Event()
        readers = self._readers.setdefault(directory, set())
        try:
            readers.add(news)
            self._begin(directory, first=len(readers) == 1)
            yield news
        finally:
            readers.discard(news)
            if not readers and self._readers.pop(directory, None) is not None:
                self._end(directory)

    def _begin(self, directory: Path, *, first: bool) -> None:
        try:
            if self._watch is None:
                self._watch = InotifyWatch(self._notify)
            if first:
                self._watch.add(directory, FILES_CHANGED | IN_MODIFY | IN_CREATE)
        except KubengineError:
            return

    def _end(self, directory: Path) -> None:
        if self._watch is None:
            return
        self._watch.remove(directory)
        if not self._readers:
            self._watch.close()
            self._watch = None

    def _notify(self, _mask: int, directory: Path, name: str) -> None:
        """Notify the readers of a file. An event without a name means that the kernel lost events, so all are
        notified.
        """
        of_file: Iterable[set[asyncio.Event]] = [self._readers.get(directory, set())]
        for readers in of_file if name else self._readers.values():
            for news in readers:
                news.set()


async def _opened(path: Path, top: Path) -> FileIO:
    """Open a log below `top`. Raises InvalidInput naming the path."""

    def open_it() -> FileIO:
        with opened_parent(path, top) as (directory, name):
            return FileIO(open_regular(directory, name))

    try:
        return await asyncio.to_thread(open_it)
    except OSError as error:
        raise InvalidInput(f'failed to open log file "{path}": {error.strerror or error}') from error


async def read_log(
    path: Path, top: Path, options: LogOptions, *, running: Callable[[], bool], watch: LogWatch
) -> AsyncGenerator[bytes, None]:
    """Yield the wanted part of a log below `top`, in pieces; the first is empty and reports that the log is
    open.

    `running` tells whether more may come. Raises InvalidInput naming the path.
    """
    log = _Log(await _opened(path, top), LogText(options))
    try:
        yield b""
        await asyncio.to_thread(log.seek, options.tail)
        if not options.follow:
            while (piece := await asyncio.to_thread(log.read, last=True)) is not None:
                if piece:
                    yield piece
            return
        with watch.changes(path.parent) as news:
            while True:
                # Before the file is read: what a container writes until it ends is then read in any case.
                alive = running()
                news.clear()
                while (piece := await asyncio.to_thread(log.read, last=not alive)) is not None:
                    if piece:
                        yield piece
                if log.done:
                    return
                # A rotation renamed the file: its rest is read first, then the new one from its beginning.
                if await asyncio.to_thread(log.is_another, path):
                    try:
                        replacement = await _opened(path, top)
                    except InvalidInput:
                        pass  # the log is missing between the two steps of a rotation
                    else:
                        while (piece := await asyncio.to_thread(log.read, last=True)) is not None:
                            if piece:
                                yield piece
                        log.go_on_in(replacement)
                        continue
                if not alive:
                    return
                try:
                    # Also without a change: the end of the container is no event in the directory.
                    async with asyncio.timeout(POLL_SECONDS):
                        await news.wait()
                except TimeoutError:
                    continue
    finally:
        log.close()


class _Log:
    """Hold the position of one reader in a file.

    A thread may still read when the reader has left. It then finds the file closed, rather than another file
    under the same descriptor.
    """

    def __init__(self, file: FileIO, text: LogText) -> None:
        self._file = file
        self._text = text
        self._rest = b""

    @property
    def done(self) -> bool:
        return self._text.done

    def seek(self, tail: int | None) -> None:
        if tail is not None:
            self._file.seek(_tail_offset(self._file, tail))

    def read(self, *, last: bool) -> bytes | None:
        """Read one stretch, which may be empty; return None at the end of the file or of what is wanted.

        With `last`, a line without a newline is included.
        """
        if self.done:
            return None
        data = self._file.read(PIECE)
        if not data and not (last and self._rest):
            return None
        lines = _lines(self._rest + data)
        self._rest = b""
        # The runtime may be in the middle of a line; one without end is passed on in pieces.
        if data and lines and not lines[-1].endswith(b"\n") and len(lines[-1]) < LONGEST_LINE:
            self._rest = lines.pop()
        return self._text.take_all(lines)

    def is_another(self, path: Path) -> bool:
        """Tell whether the path now leads to another file, or to none."""
        held = os.fstat(self._file.fileno())
        try:
            found = os.lstat(path)
        except OSError as error:
            return error.errno == errno.ENOENT
        return (held.st_dev, held.st_ino) != (found.st_dev, found.st_ino)

    def go_on_in(self, file: FileIO) -> None:
        self._file.close()
        self._file, self._rest = file, b""

    def close(self) -> None:
        self._file.close()


def _lines(data: bytes) -> list[bytes]:
    """Split into lines with their newlines; no other character ends a line."""
    *whole, rest = data.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, rest] if rest else lines


def _tail_offset(file: FileIO, lines: int) -> int:
    """Return the offset of the last `lines` complete lines; what follows them belongs to them."""
    at = file.seek(0, os.SEEK_END)
    wanted = lines + 1
    while at > 0:
        start = max(0, at - PIECE)
        data = os.pread(file.fileno(), at - start, start)
        found = data.count(b"\n")
        if found >= wanted:
            end = len(data)
            for _ in range(wanted):
                end = data.rindex(b"\n", 0, end)
            return start + end + 1
        wanted -= found
        at = start
    return 0
