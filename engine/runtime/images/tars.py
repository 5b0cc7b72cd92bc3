"""Read untrusted tar archives in one pass, bounded by the actual bytes, whatever headers claim.

`tarfile` reads headers of any claimed size into memory and remembers every member. Here a member's headers,
the number of members and the total bytes have limits, and members are not remembered.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple, cast

from engine.api.errors import InvalidInput

MAX_HEADERS = 1 << 20
DAMAGE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError)
CHUNK = 1 << 20


class Limits(NamedTuple):
    """Limit one archive: the number of `entries`, and `size`, the bytes of the uncompressed tar and of every
    file in it.
    """

    entries: int
    size: int


class TarSource:
    """Provide the forward-only stream that `tarfile` needs. Raise InvalidInput past a limit."""

    def __init__(self, stream: IO[bytes], size: int, subject: str) -> None:
        self.subject = subject
        self._stream = stream
        self._size = size
        self._position = 0
        self._headers: int | None = None

    def read(self, size: int = -1) -> bytes:
        if self._headers is not None:
            self._headers -= size
            if self._headers < 0 or size < 0:
                raise InvalidInput(f"headers of more than {MAX_HEADERS} bytes", subject=self.subject)
        data = self._stream.read(size)
        self._position += len(data)
        if self._position > self._size:
            raise InvalidInput(f"more than {self._size} bytes", subject=self.subject)
        return data

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        """Seek forward only, which reading members in sequence needs."""
        headers, self._headers = self._headers, None
        while self._position < position and self.read(min(CHUNK, position - self._position)):
            pass
        self._headers = headers
        return self._position

    @contextmanager
    def within_headers(self) -> Iterator[None]:
        self._headers = MAX_HEADERS
        try:
            yield
        finally:
            self._headers = None


def members(source: TarSource, limits: Limits) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield each member with the tar that extracts it. Raise InvalidInput."""
    count = 0
    with source.within_headers():
        tar = tarfile.open(fileobj=cast(IO[bytes], source), mode="r:")  # noqa: SIM115  (owns nothing)
    while True:
        with source.within_headers():
            member = tar.next()
        if member is None:
            return
        cast(Any, tar).members.clear()
        count += 1
        if count > limits.entries:
            raise InvalidInput(f"more than {limits.entries} entries", subject=source.subject)
        if not 0 <= member.size <= limits.size:
            text = f"{member.name!r} claims {member.size} bytes; expected at most {limits.size}"
            raise InvalidInput(text, subject=source.subject)
        yield tar, member


def uncompressed(stream: IO[bytes], subject: str) -> IO[bytes]:
    """Decompress `stream`, which can seek, as its first bytes indicate."""
    magic = stream.read(6)
    stream.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=stream))
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(stream)
    if magic.startswith(b"\xfd7zXZ"):
        return lzma.LZMAFile(stream)
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        raise InvalidInput("zstd is not supported; use gzip or no compression", subject=subject)
    return stream
