"""Ends writes to a peer that no longer reads; a peer that reads, however slowly, loses nothing."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Awaitable, Callable

CHECK_SECONDS = 1.0
CLOSE_SECONDS = 24 * 3600.0  # close_when_read aborts the connection long before
_TCP_INFO = 128
_ACKNOWLEDGED = struct.Struct("120xQ")  # tcpi_bytes_acked, include/uapi/linux/tcp.h


async def run_while_peer_reads(
    writer: asyncio.StreamWriter, step: Callable[[], Awaitable[object]], seconds: float
) -> bool:
    """Run `step`, and run it again after `seconds` as long as the peer has read something in that time.

    Return whether a run completed. The runs before it are cancelled.
    """
    before: tuple[int, ...] | None = None
    while True:
        try:
            async with asyncio.timeout(seconds) as deadline:
                await step()
            return True
        except TimeoutError:
            # A time-out of an outer scope, or of the step itself.
            if not deadline.expired():
                raise
        now = _account(writer)
        if now == before:
            return False
        before = now


async def close_when_read(writer: asyncio.StreamWriter, seconds: float) -> None:
    """Close a connection once its peer has read everything, or nothing for `seconds`.

    A peer that has read everything and keeps the connection open has CHECK_SECONDS to close it.
    """
    if not writer.is_closing():  # a TLS transport that is closed twice forgets its connection
        writer.close()
    closed = asyncio.ensure_future(writer.wait_closed())
    before: tuple[int, ...] = ()
    idle = 0.0
    try:
        while idle < (seconds if _queued(writer) else CHECK_SECONDS):
            if (await asyncio.wait({closed}, timeout=CHECK_SECONDS))[0]:
                return
            now = _account(writer)
            idle = idle + CHECK_SECONDS if now == before else 0.0
            before = now
    finally:
        writer.transport.abort()
        closed.cancel()
        (ended,) = await asyncio.gather(closed, return_exceptions=True)
        if isinstance(ended, BaseException):
            ended.with_traceback(None)  # the reader keeps it: a cycle with OpenSSL's memory in it


def _queued(writer: asyncio.StreamWriter) -> int:
    """Return the bytes in the kernel that the peer has not read; 0 for a closed connection."""
    peer = _socket(writer)
    if peer is None:
        return 0
    size: int = struct.unpack("i", fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
    return size


def _socket(writer: asyncio.StreamWriter) -> socket.socket | None:
    """Return the socket, or None of a closed connection: TLS has no socket then, TCP a closed one."""
    peer: socket.socket | None = writer.get_extra_info("socket")
    return None if peer is None or peer.fileno() < 0 else peer


def _account(writer: asyncio.StreamWriter) -> tuple[int, ...]:
    """Return counters that change when the peer reads something."""
    peer = _socket(writer)
    left = (_queued(writer), writer.transport.get_write_buffer_size())
    # A unix socket has no TCP_INFO; its queue shrinks only when the peer reads.
    if peer is None or peer.family == socket.AF_UNIX:
        return left
    taken: int = _ACKNOWLEDGED.unpack(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO))[0]
    return (*left, taken)
