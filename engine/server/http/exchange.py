"""Defines requests and responses. No I/O."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from engine.api.errors import InvalidInput
from engine.api.struct import to_json

JSON = "application/json"
JSON_LINES = "application/x-ndjson"
TEXT = "text/plain; charset=utf-8"

Headers = tuple[tuple[str, str], ...]
"""In their order; names of a request in lower case."""


class Request(msgspec.Struct, frozen=True):
    """Hold a request: `path` has no query; `query` has the last value of each name, `pairs` all of them, in
    order. `body` is its first KiB. `trusted` is true on the admin socket, which alone may change something.
    """

    method: str
    path: str
    query: Mapping[str, str] = msgspec.field(default_factory=dict)
    trusted: bool = False
    pairs: Headers = ()
    headers: Headers = ()
    body: bytes = b""

    @property
    def asks_health(self) -> bool:
        return self.path == "/healthz" or self.path.startswith("/healthz/")

    def header(self, name: str) -> str:
        """Return all values under a name, in lower case, with commas between them."""
        return ", ".join(value for known, value in self.headers if known == name)

    @property
    def upgrade(self) -> str:
        """Return the protocol that the client wants to switch to, in lower case; "" for none."""
        offered = self.header("connection").lower().replace(" ", "").split(",")
        return self.header("upgrade").lower() if "upgrade" in offered else ""

    def values(self, name: str) -> list[str]:
        """Return every value that the query has under a name."""
        return [value for known, value in self.pairs if known == name]

    @classmethod
    def parse(
        cls,
        method: str,
        target: str,
        *,
        trusted: bool,
        headers: Headers = (),
        most_fields: int = 32,
        body: bytes = b"",
    ) -> Request:
        """Parse a request line. Raise `InvalidInput` for a target that is no path."""
        try:
            parts = urlsplit(target)
            pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=most_fields)
        except ValueError as error:
            raise InvalidInput(f"not a valid request target: {error}") from None
        if not parts.path.startswith("/"):
            raise InvalidInput("the request target must be a path")
        return cls(method, unquote(parts.path), dict(pairs), trusted, tuple(pairs), headers, body)


class Response(msgspec.Struct, frozen=True):
    """Hold an answer: `body` is whole, or an iterator of pieces, sent as they are produced.

    `last` closes the connection after this answer.
    """

    status: int
    content_type: str
    body: bytes | Iterable[bytes] | AsyncGenerator[bytes, None]
    headers: Headers = ()
    last: bool = False


class Takeover(msgspec.Struct, frozen=True):
    """Switch the connection to another protocol: 101 with `headers`, then `converse` owns it until it
    returns.

    `converse` gets the bytes that the peer has already sent. `close` is called in any case, at the end.
    """

    headers: Headers
    converse: Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    close: Callable[[], None]


Answer = Response | Takeover


def failure(status: int, message: str) -> Response:
    """Return an error as JSON, which `engine.cli` reads."""
    return Response(status, JSON, to_json({"error": message}))


def plain(status: int, message: str) -> Response:
    """Return an error as plain text, as a kubelet does."""
    return Response(status, TEXT, message.encode())
