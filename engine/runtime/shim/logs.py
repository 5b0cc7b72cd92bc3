"""Write a container's output as a CRI log file: `2024-01-01T00:00:00.000000000Z stdout F text`.

A line longer than 16 KiB is split; all parts but the last carry the tag `P`.
"""

from __future__ import annotations

import os
import time

MAX_LINE = 16 * 1024


class LogFile:
    """Append to `path`; an empty path discards everything. A full disk loses lines but does not stop the
    container.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._pending = {b"stdout": b"", b"stderr": b""}
        if path:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            self._open()

    def reopen(self) -> None:
        """Continue in a new file after the old one was renamed."""
        if self._path:
            old = self._fd
            self._open()
            os.close(old)

    def write(self, stream: bytes, data: bytes) -> None:
        if self._fd < 0:
            return
        lines = (self._pending[stream] + data).split(b"\n")
        rest = lines.pop()
        out: list[bytes] = []
        head = _head(stream)
        for line in lines:
            _add(out, head, line, last=b"F")
        while len(rest) >= MAX_LINE:
            _add(out, head, rest[:MAX_LINE], last=b"P")
            rest = rest[MAX_LINE:]
        self._pending[stream] = rest
        self._append(out)

    def flush(self, stream: bytes) -> None:
        """Write the rest without a newline as the last line of the ended stream."""
        if self._fd >= 0 and self._pending[stream]:
            out: list[bytes] = []
            _add(out, _head(stream), self._pending[stream], last=b"F")
            self._pending[stream] = b""
            self._append(out)

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def _append(self, lines: list[bytes]) -> None:
        data = b"".join(lines)
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            return


def _add(out: list[bytes], head: bytes, line: bytes, *, last: bytes) -> None:
    while len(line) > MAX_LINE:
        out.append(b"%s P %s\n" % (head, line[:MAX_LINE]))
        line = line[MAX_LINE:]
    out.append(b"%s %s %s\n" % (head, last, line))


def _head(stream: bytes) -> bytes:
    """Return time and stream; output that was read at once has one time."""
    seconds, nanos = divmod(time.time_ns(), 1_000_000_000)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{stamp}.{nanos:09d}Z {stream.decode()}".encode()
