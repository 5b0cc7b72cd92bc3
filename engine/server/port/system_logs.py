"""`/logs/`: what lies beneath /var/log, as a kubelet shows it. No link is followed: none leads out."""

from __future__ import annotations

import asyncio
import html
import os
import stat
from collections.abc import AsyncGenerator
from io import FileIO
from pathlib import Path
from urllib.parse import quote

from engine.host.safe_open import HANDLE, open_beneath, open_regular, opened, same_file
from engine.server.http.exchange import TEXT, Request, Response, plain

TOP = Path("/var/log")
PIECE = 256 * 1024
MAX_NAMES = 10_000


async def system_logs(request: Request, top: Path = TOP) -> Response:
    """A directory's names or a file's bytes."""
    below = request.path.removeprefix("/logs").strip("/")
    try:
        found = await asyncio.to_thread(_open, top, below)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        return plain(404, "404 page not found\n") if missing else plain(403, "403 Forbidden\n")
    if isinstance(found, bytes):
        return Response(200, "text/html; charset=utf-8", found)
    pieces = _pieces(found)
    await anext(pieces)
    return Response(200, TEXT, pieces)


def _open(top: Path, below: str) -> FileIO | bytes:
    """A file, or a directory's page."""
    with opened(top) as directory:
        handle = open_beneath(directory, below or ".", HANDLE)
        try:
            if stat.S_ISDIR(os.fstat(handle).st_mode):
                return _page(handle)
        finally:
            os.close(handle)
        return FileIO(open_regular(directory, below))


def _page(handle: int) -> bytes:
    with os.scandir(same_file(handle)) as entries:
        names = sorted(
            entry.name + "/" * entry.is_dir(follow_symlinks=False)
            for entry, _ in zip(entries, range(MAX_NAMES), strict=False)
        )
    links = "".join(f'<a href="{quote(os.fsencode(name))}">{html.escape(name)}</a>\n' for name in names)
    return f"<pre>\n{links}</pre>\n".encode("utf-8", "replace")


async def _pieces(file: FileIO) -> AsyncGenerator[bytes, None]:
    """The first is empty: from then on the file is closed with the pieces' end."""
    with file:
        yield b""
        while data := await asyncio.to_thread(file.read, PIECE):
            yield data
