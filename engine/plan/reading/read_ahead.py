"""Read a stream in a thread, a bounded number of chunks ahead.

Reading, unpacking and hashing release the interpreter's lock, so they run in parallel with the decoder.
"""

from __future__ import annotations

import queue
import threading
from types import TracebackType
from typing import Protocol

CHUNK = 4 * 1024 * 1024
AHEAD = 3
_WAIT = 0.1


class Readable(Protocol):
    def read1(self, size: int = -1, /) -> bytes: ...


class ReadAhead:
    """Return the next chunk from `read`, empty at the end; `read` raises what the stream raised.

    Closing it stops the thread; the stream itself stays open.
    """

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._chunks: queue.Queue[bytes | Exception] = queue.Queue(AHEAD)
        self._stopping = threading.Event()
        self._ended = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="plan-read-ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            item = self._next()
            while not self._stopping.is_set():
                try:
                    self._chunks.put(item, timeout=_WAIT)
                    break
                except queue.Full:
                    continue
            if not isinstance(item, bytes) or not item:
                return

    def _next(self) -> bytes | Exception:
        """Return a chunk, or raise what the stream raised once everything before it was returned."""
        parts, size = [], 0
        try:
            while self._failure is None and size < CHUNK and not self._stopping.is_set():
                part = self._stream.read1(CHUNK - size)
                if not part:
                    break
                parts.append(part)
                size += len(part)
        except Exception as error:
            self._failure = error
        if not parts and self._failure is not None:
            return self._failure
        return b"".join(parts)

    def read(self) -> bytes:
        if self._ended:
            return b""
        item = self._chunks.get()
        if isinstance(item, bytes):
            self._ended = not item
            return item
        self._ended = True
        raise item

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
