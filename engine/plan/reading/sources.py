"""Open a snapshot's sources: files, gzip, tar bundles, standard input, one live node.

The type of a source is detected from its first bytes, never from its name. Archives are untrusted: members
are read as streams (nothing is unpacked to disk) and only regular files are read.
"""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from engine.api.errors import InvalidInput
from engine.plan.reading.live_node import is_live, live_documents
from engine.plan.reading.read_ahead import CHUNK
from engine.plan.snapshot.columnar_file import MAGIC

_GZIP_MAGIC = b"\x1f\x8b"
_TAR_AT = 257
_TEXT_SUFFIXES = (".json", ".ndjson", ".jsonl", ".gz", ".txt")


class Digest(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


Stream = io.BufferedReader | gzip.GzipFile
Advance = Callable[[int], None]
"""Receives how many bytes of input were read since the last call."""


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """Describe one stream of JSON. Faults name its `origin`; `is_snapshot` marks a columnar file instead."""

    origin: str
    stream: Stream
    is_snapshot: bool = False


class _Counted(io.RawIOBase):
    """Count and hash the bytes that are read from a file."""

    def __init__(self, file: io.BufferedIOBase | io.RawIOBase, digest: Digest, advance: Advance) -> None:
        self._file = file
        self._digest = digest
        self._advance = advance

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        count = self._file.readinto(target) or 0
        self._digest.update(target[:count])
        self._advance(count)
        return count

    def close(self) -> None:
        if self._file is not sys.stdin.buffer:
            self._file.close()
        super().close()


def open_sources(paths: list[str], digest: Digest, advance: Advance) -> Iterator[DocumentSource]:
    """Yield every stream in `paths`: files, `-` for standard input, a URL or a socket for a live node.

    A columnar snapshot is yielded unread, with `is_snapshot`. Raise `InvalidInput` naming the path.
    """
    for path in paths:
        if is_live(path):
            for address, data in live_documents(path):
                digest.update(data)
                yield in_memory(address, data)
        elif path != "-" and Path(path).is_dir():
            for file in sorted(p for p in Path(path).rglob("*") if p.is_file()):
                if file.suffix in _TEXT_SUFFIXES:
                    yield from _opened(_open(str(file)), str(file), digest, advance)
        else:
            yield from _opened(_open(path), path, digest, advance)


def in_memory(origin: str, data: bytes) -> DocumentSource:
    """Return documents that were received whole."""
    return DocumentSource(origin, _buffered(io.BytesIO(data)))


def total_size(paths: list[str]) -> int | None:
    """Return the number of bytes to read, for the progress bar; None if a path has no size."""
    try:
        files = [Path(path) for path in paths]
        return sum(
            sum(p.stat().st_size for p in file.rglob("*") if p.is_file())
            if file.is_dir()
            else file.stat().st_size
            for file in files
        )
    except OSError:
        return None


def _open(path: str) -> io.BufferedIOBase | io.RawIOBase:
    if path == "-":
        return cast(io.BufferedIOBase, sys.stdin.buffer)
    try:
        return Path(path).open("rb", buffering=0)
    except OSError as error:
        raise InvalidInput(error.strerror or str(error), subject=path) from error


def _opened(
    file: io.BufferedIOBase | io.RawIOBase, origin: str, digest: Digest, advance: Advance
) -> Iterator[DocumentSource]:
    with _buffered(_Counted(file, digest, advance)) as buffered:
        yield from _sniffed(buffered, "standard input" if origin == "-" else origin)


def _buffered(raw: object) -> io.BufferedReader:
    return io.BufferedReader(cast(io.RawIOBase, raw), CHUNK)


def _sniffed(stream: Stream, origin: str) -> Iterator[DocumentSource]:
    head = stream.peek(512)
    if head.startswith(_GZIP_MAGIC):
        inner = gzip.GzipFile(fileobj=stream)
        try:
            nested = inner.peek(512).startswith(_GZIP_MAGIC)
        except (EOFError, OSError, zlib.error) as error:
            raise InvalidInput(f"broken gzip: {error}", subject=origin) from None
        if nested:
            raise InvalidInput("gzip within gzip; expected one level of compression", subject=origin)
        yield from _sniffed(inner, origin)
    elif head.startswith(MAGIC):
        yield DocumentSource(origin, stream, is_snapshot=True)
    elif head[_TAR_AT : _TAR_AT + 5] == b"ustar":
        yield from _members(stream, origin)
    else:
        yield DocumentSource(origin, stream)


def _members(stream: Stream, origin: str) -> Iterator[DocumentSource]:
    try:
        with tarfile.open(fileobj=stream, mode="r|") as bundle:
            for member in bundle:
                file = bundle.extractfile(member) if member.isreg() else None
                if file is None or not member.name.endswith(_TEXT_SUFFIXES):
                    continue
                inner: Stream = _buffered(file)
                if member.name.endswith(".gz"):
                    inner = gzip.GzipFile(fileobj=cast(io.BufferedReader, inner))
                yield DocumentSource(f"{origin}:{member.name}", inner)
    except (tarfile.TarError, EOFError) as error:
        raise InvalidInput(f"broken tar: {error}", subject=origin) from None
