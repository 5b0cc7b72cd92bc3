"""Parses files of variables that containers write for later containers (`fileKeyRef`). Pure.

    NAME='any text,
    over several lines if need be'   # a comment

A value stands in single quotes and is taken literally, without escapes or expansion. Blanks before a name,
blank lines and comments are skipped; blanks before `=` are an error; blanks after it make the value empty.
Source: kubelet v1.36 (`pkg/kubelet/util/env`); each line has less than 64 KiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from engine.api.errors import InvalidInput

LONGEST_LINE: Final = 64 * 1024 - 1
_BLANKS: Final = b" \t"


class EnvFile(msgspec.Struct, frozen=True):
    """Hold an environment file on this host; without a text it could not be read."""

    path: str
    text: bytes | None


def value_of(text: bytes, key: bytes) -> bytes:
    """Return the first value of a variable, or '' if there is none; later lines are not checked.

    Raises `InvalidInput` naming the line.
    """
    lines = enumerate(_lines(text), start=1)
    for number, line in lines:
        stripped = line.lstrip(_BLANKS)
        if not stripped or stripped.startswith(b"#"):
            continue
        name, equals, rest = stripped.partition(b"=")
        if not equals:
            raise InvalidInput("missing '='", subject=f"line {number}")
        if not name.rstrip(_BLANKS):
            raise InvalidInput("empty variable name", subject=f"line {number}")
        if name != name.rstrip(_BLANKS):
            raise InvalidInput("whitespace before '=' is not allowed", subject=f"line {number}")
        value = b"" if rest.startswith((b" ", b"\t")) else _quoted(rest, number, lines)
        if name == key:
            return value
    return b""


def _quoted(rest: bytes, first: int, lines: Iterator[tuple[int, bytes]]) -> bytes:
    """Return the quoted text that starts here, consuming the lines that it spans."""
    if not rest.startswith(b"'"):
        raise InvalidInput("value must be enclosed in single quotes", subject=f"line {first}")
    number, parts, rest = first, list[bytes](), rest[1:]
    while b"'" not in rest:
        parts += [rest, b"\n"]
        following = next(lines, None)
        if following is None:
            raise InvalidInput("unclosed single quote", subject=f"line {first}")
        number, rest = following
    inside, _, after = rest.partition(b"'")
    after = after.lstrip(_BLANKS)
    if after and not after.startswith(b"#"):
        raise InvalidInput("unexpected content after closing quote", subject=f"line {number}")
    return b"".join([*parts, inside])


def _lines(text: bytes) -> Iterator[bytes]:
    """Yield the lines without their ends, Unix or Windows."""
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_LINE:
            raise InvalidInput("line is too long", subject=f"line {number}")
        yield line.removesuffix(b"\r")
