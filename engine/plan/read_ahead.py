"""Reading a stream in a thread, a bounded number of chunks ahead.

Reading, unpacking and hashing leave the interpreter's lock, so they run beside the decoder.
"""

from __future__ import annotations

import queue
import threading
from types import TracebackType
from typing import BinaryIO

CHUNK = 4 * 1024 * 1024
AHEAD = 3
_WAIT = 0.1


class ReadAhead:
    """`read` gives the next chunk, empty at the end; what the stream raised is raised there.

    Closing it stops the thread; the stream itself stays open.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._chunks: queue.Queue[bytes | Exception] = queue.Queue(AHEAD)
        self._stopping = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="plan-read-ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            item: bytes | Exception
            try:
                item = self._stream.read(CHUNK)
            except Exception as error:
                item = error
            while not self._stopping.is_set():
                try:
                    self._chunks.put(item, timeout=_WAIT)
                    break
                except queue.Full:
                    continue
            if not isinstance(item, bytes) or not item:
                return

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
