"""Serves `/logs/`: files below /var/log, and logs of services from the journal or from such files.

No link is followed, because one could lead out of /var/log.
"""

from __future__ import annotations

import asyncio
import html
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import aclosing
from io import FileIO
from pathlib import Path
from urllib.parse import quote

from engine.api.errors import InvalidInput, KubengineError
from engine.host.child import run_child, stream_child
from engine.host.safe_open import HANDLE, open_beneath, open_regular, opened, same_file
from engine.server.http.exchange import TEXT, Request, Response, plain
from engine.server.port.log_query import (
    UNITS,
    LogQuery,
    check_query,
    file_names,
    journal_command,
    read_query,
)

TOP = Path("/var/log")
PIECE = 256 * 1024
MAX_NAMES = 10_000
SECONDS = 30.0
"""How long journalctl may take for one request, as a kubelet allows."""
MOST_UNITS = 16 * 1024 * 1024


async def query_logs(request: Request, top: Path = TOP) -> Response:
    """Answer a log query, or a request for a file if there is no query."""
    try:
        query = read_query(request)
    except InvalidInput as error:
        return plain(400, f"{error}\n")
    below = _below(request)
    if query is None:
        return await _file(below, top)
    if below:
        return plain(406, "path not allowed in query mode\n")
    try:
        check_query(query, request)
    except InvalidInput as error:
        return plain(406, f"{error}\n")
    if query.files:
        return await _file(query.files[0].replace("\\", "/").strip("/"), top)
    return Response(200, TEXT, _service_logs(query, top))


async def system_logs(request: Request, top: Path = TOP) -> Response:
    """Answer with a directory's names or a file's bytes."""
    return await _file(_below(request), top)


def _below(request: Request) -> str:
    return request.path.removeprefix("/logs").strip("/")


async def _service_logs(query: LogQuery, top: Path) -> AsyncGenerator[bytes, None]:
    """Yield the services' logs, or a line that says why there is none, as a kubelet does."""
    units = await _units()
    in_files = [service for service in query.services if f"{service}.service" not in units]
    if in_files and query.has_options:
        named = " ".join(in_files)
        yield f"\noptions present and query resolved to log files for [{named}]\n".encode()
        yield b"try without specifying options\n"
    elif in_files:
        for service in in_files:
            async with aclosing(_file_of(service, top)) as pieces:
                async for data in pieces:
                    yield data
    else:
        try:
            command = journal_command(query)
            async with aclosing(stream_child(command, seconds=SECONDS, subject="journalctl")) as pieces:
                async for data in pieces:
                    yield data
        except KubengineError as error:
            yield f"\nerror: journal output not available: {error}\n".encode()


async def _units() -> frozenset[str]:
    """Return the units in the journal; none if there is no journal."""
    try:
        printed = await run_child(UNITS, seconds=SECONDS, most=MOST_UNITS, subject="journalctl")
    except KubengineError:
        return frozenset()
    return frozenset(printed.out.decode(errors="replace").split("\n")) if printed.code == 0 else frozenset()


async def _file_of(service: str, top: Path) -> AsyncGenerator[bytes, None]:
    """Yield the first file of a service's log that exists."""
    for name in file_names(service):
        try:
            found = await asyncio.to_thread(_open, top, name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            yield f"\nerror getting log for {service}: {name}: {error.strerror or error}\n".encode()
            return
        if isinstance(found, FileIO):
            async with aclosing(_pieces(found)) as pieces:
                async for data in pieces:
                    yield data
            return
    yield f"\nlog not found for {service}\n".encode()


async def _file(below: str, top: Path) -> Response:
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
    """Open a file, or list a directory."""
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
    """Yield the file's pieces. The first is empty, so that the generator has started and closes the file."""
    with file:
        yield b""
        while data := await asyncio.to_thread(file.read, PIECE):
            yield data
