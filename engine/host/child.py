"""A program that is run for what it prints: with a deadline, and no more of its words than can be of use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.api.errors import Refused, Unavailable

MOST_SAID = 4096


@dataclass(frozen=True, slots=True)
class Printed:
    """What came out, and the last words on stderr."""

    code: int
    out: bytes
    said: str


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
    """Run `command` to its end, within `seconds`, for at most `most` bytes of output.

    Raises Unavailable where it cannot be started or is late, Refused where it prints more; its process
    group is killed then.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            pass_fds=descriptors,
            start_new_session=True,
            stdin=PIPE if stdin else DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
    except OSError as error:
        raise Unavailable(error.strerror or str(error), subject=subject, errno=error.errno) from error
    try:
        async with asyncio.timeout(seconds):
            _, out, said = await asyncio.gather(
                _feed(process, stdin), _read(process, most), _last_words(process)
            )
            code = await process.wait()
    except TimeoutError:
        raise Unavailable(f"no answer within {seconds:g} s", subject=subject) from None
    finally:
        if process.returncode is None:
            _kill(process)
            await process.wait()
    if len(out) > most:
        raise Refused(f"it prints more than {most} bytes", subject=subject)
    return Printed(code, out, said)


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _feed(process: Process, data: bytes) -> None:
    pipe = process.stdin
    if pipe is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        pipe.write(data)
        await pipe.drain()
    pipe.close()


async def _read(process: Process, most: int) -> bytes:
    """All of it; a program that prints more than `most` bytes is killed, and a little more comes back."""
    assert process.stdout is not None
    data = bytearray()
    while len(data) <= most and (piece := await process.stdout.read(65536)):
        data += piece
    if len(data) > most:
        _kill(process)
    return bytes(data)


async def _last_words(process: Process) -> str:
    assert process.stderr is not None
    data = b""
    while piece := await process.stderr.read(65536):
        data = (data + piece)[-MOST_SAID:]
    return data.decode(errors="replace").strip()
