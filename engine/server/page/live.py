"""Sends changes to the readers of the page: server-sent events with the changed rows of one part each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

from engine.api.struct import to_json
from engine.server.http.exchange import Response
from engine.server.page.rows import differences
from engine.server.page.watch import PageWatch

STILL_HERE = 15.0
"""Seconds without an event after which a reader gets a sign of life."""


def live(watch: PageWatch) -> Response:
    """Send changes until the reader leaves."""
    headers = (("cache-control", "no-store"), ("x-content-type-options", "nosniff"))
    return Response(200, "text/event-stream", _news(watch), headers)


async def _news(watch: PageWatch) -> AsyncGenerator[bytes, None]:
    sent: dict[str, Mapping[str, bytes]] = {}
    failures: dict[str, str] = {}
    async with watch.reading() as news:
        # A browser connects again by itself; `begin` makes it forget the rows of the earlier connection.
        yield b"retry: 2000\nevent: begin\ndata: {}\n\n"
        while True:
            try:
                async with asyncio.timeout(STILL_HERE):
                    await news.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            news.clear()
            pieces: list[bytes] = []
            for name, rows in watch.parts.items():
                changed = list(differences(sent.get(name, {}), rows))
                if changed or name not in sent:
                    pieces += [_event(name), *(changed or [b"{}"]), b"\n\n"]
                sent[name] = rows
                if watch.failures[name] != failures.get(name, ""):
                    failures[name] = watch.failures[name]
                    pieces += [_event("failure"), to_json({"part": name, "error": failures[name]}), b"\n\n"]
            if pieces:
                yield b"".join(pieces)


def _event(name: str) -> bytes:
    return f"event: {name}\ndata: ".encode()
