"""Writes and reads lines of a record file: `CHECKSUM KEY VALUE KEY`, appended; the last one of a key counts.

The checksum covers everything after it. The key stands at both ends, so that damage to a line tells which
record is lost: an older line of that key must not be taken for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.api.encoding.digest import blake2b

SUM_LENGTH = 32


Place = tuple[int, int]
"""Offset and length of a line in the file, in bytes; the length includes the line feed."""


class Scan:
    """Hold the content of a record file: `places` by key, and the offsets of `damaged` lines.

    `end` is where the last whole line ends. What follows it is an append that a crash or a power cut
    interrupted.
    """

    __slots__ = ("damaged", "end", "places")

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.damaged: list[int] = []
        self.end = 0


def line(key: str, value: bytes) -> bytes:
    """Return a line. Raises `ValueError` if the key has white space or the value a line feed."""
    name = key.encode()
    if b"\n" in value or len(name.split()) != 1:
        raise ValueError(f"{key!r}: a key is one word, and a value one line")
    content = b"%s %s %s" % (name, value, name)
    return b"%s %s\n" % (_sum(content), content)


def read(data: bytes) -> tuple[str, bytes]:
    """Return key and value of a line. Raises `ValueError` if it is damaged."""
    content = data[SUM_LENGTH + 1 : -1]
    if data != b"%s %s\n" % (_sum(content), content):
        raise ValueError("damaged: its checksum does not match")
    name, _, rest = content.partition(b" ")
    return name.decode(), rest[: -len(name) - 1]


def scan(data: bytes) -> Scan:
    """Find the newest line of each key."""
    found = Scan()
    for offset, each in _lines(data):
        found.end = offset + len(each)
        try:
            key, _ = read(each)
        except ValueError:
            found.damaged.append(offset)
            for key in _keys(each):
                found.places.pop(key, None)
        else:
            found.places[key] = (offset, len(each))
    return found


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while (end := data.find(b"\n", offset) + 1) > 0:
        yield offset, data[offset:end]
        offset = end


def _keys(damaged: bytes) -> set[str]:
    """Return the possible keys of a damaged line, or of two lines whose line feed is damaged."""
    words = damaged.split()
    return {word.decode(errors="replace") for word in (*words[:2], *words[-1:])}


def _sum(content: bytes) -> bytes:
    return blake2b(content, digest_size=SUM_LENGTH // 2).hexdigest().encode()
