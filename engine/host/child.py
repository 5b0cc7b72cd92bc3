"""Finds a program, and runs it for its output, whole or while it is printed, with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import cast

import msgspec

from engine.api.errors import Refused, Unavailable

MOST_ERRORS = 4096
PIECE = 64 * 1024
STDERR = 2


def which(program: str) -> str | None:
    """Return the path of a program as `shutil.which` does; `shutil` would load three libraries that compress
    into every agent.
    """
    directories = [""] if os.path.dirname(program) else os.get_exec_path()
    paths = (os.path.join(directory, program) for directory in directories)
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)


class Printed(msgspec.Struct, frozen=True):
    """Hold the exit code, the output, and the end of the error output."""

    code: int
    out: bytes
    errors: str


async def run_child(
    command: Sequence[str],
    *,
    seconds: float,
    most: int,
    subject: str,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
) -> Printed:
    """Run `command` to its end within `seconds`, for at most `most` bytes of output.

    Raises Unavailable if it cannot be started or is late, and Refused if it prints more; its process group
    is killed then.
    """
    loop = asyncio.get_running_loop()
    try:
        transport, listener = await loop.subprocess_exec(
            lambda: _Listener(most),
            *command,
            env=environment,
            pass_fds=descriptors,
            # Its process group is then its own, so that a kill reaches the children of a shell script, too.
            start_new_session=True,
            stdin=PIPE if stdin else DEVNULL,
        )
    except OSError as error:
        raise Unavailable(error.strerror or str(error), subject=subject, errno=error.errno) from error
    try:
        listener.feed(stdin)
        async with asyncio.timeout(seconds):
            await listener.ended.wait()
    except TimeoutError:
        raise Unavailable(f"no answer within {seconds:g} s", subject=subject) from None
    finally:
        listener.kill()
        # After `kill`: close alone would leave children of the program running.
        transport.close()
        await listener.ended.wait()
    if len(listener.out) > most:
        raise Refused(f"its output exceeds {most} bytes", subject=subject)
    errors = listener.errors.decode(errors="replace").strip()
    return Printed(transport.get_returncode() or 0, bytes(listener.out), errors)


async def stream_child(
    command: Sequence[str], *, seconds: float, subject: str
) -> AsyncGenerator[bytes, None]:
    """Run `command` and yield what it prints, errors included, in pieces of at most 64 KiB.

    Raises Unavailable if it cannot be started or has not ended within `seconds`. Its process group is killed
    then, and when the generator is closed.
    """
    loop = asyncio.get_running_loop()
    late = loop.time() + seconds
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True, limit=PIECE
        )
    except OSError as error:
        raise Unavailable(error.strerror or str(error), subject=subject, errno=error.errno) from error
    assert process.stdout is not None
    try:
        while data := await asyncio.wait_for(process.stdout.read(PIECE), max(late - loop.time(), 0)):
            yield data
    except TimeoutError:
        raise Unavailable(f"it did not exit within {seconds:g} s", subject=subject) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


class _Listener(asyncio.SubprocessProtocol):
    """Collect a program's output, and kill the program when it prints too much."""

    def __init__(self, most: int) -> None:
        self.out, self.errors = bytearray(), b""
        self.ended = asyncio.Event()
        self._most = most
        self._transport: asyncio.SubprocessTransport | None = None

    def feed(self, data: bytes) -> None:
        assert self._transport is not None
        pipe = self._transport.get_pipe_transport(0)
        if isinstance(pipe, asyncio.WriteTransport):
            pipe.write(data)
            pipe.close()

    def kill(self) -> None:
        """Kill the program if it still runs."""
        if self._transport is not None and self._transport.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == STDERR:
            # The end of the errors is the part that explains a failure.
            self.errors = (self.errors + data)[-MOST_ERRORS:]
        elif len(self.out) <= self._most:
            self.out += data
            if len(self.out) > self._most:
                self.kill()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
