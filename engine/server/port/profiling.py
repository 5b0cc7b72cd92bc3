"""Answers `/debug/pprof/`: what the agent does, as a Python process.

The paths are those of a kubelet, the contents are Python's. `profile` samples the stacks of all threads for
some seconds and returns them folded (`outer;inner COUNT` a line), as flame graph tools and speedscope read
them; `goroutine` lists the stacks of all tasks and threads; `heap` counts the objects by type; `cmdline` and
`symbol` are as in Go. One profile is taken at a time, for a bounded number of seconds.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Final

from engine.server.http.exchange import TEXT, Request, Response, plain

DISABLED: Final = "profiling endpoint is disabled.\n"
DEFAULT_SECONDS, MOST_SECONDS = 30, 60
SAMPLES_PER_SECOND: Final = 100
MOST_STACKS: Final = 20_000
MOST_DEPTH: Final = 100
TASKS_IN_A_TURN: Final = 64
MOST_TYPES: Final = 100
BUSY: Final = "Could not enable CPU profiling: cpu profiling already in use\n"
_OF_GO: Final = ("allocs", "block", "mutex", "threadcreate", "trace")
_INDEX: Final = """Profiles of this agent, a Python process:

cmdline     the command line
goroutine   the stacks of all tasks and threads
heap        objects by type
profile     stacks of all threads, sampled for ?seconds=30 (60 at most), folded for flame graphs
symbol      nothing: stacks have their names already
"""


class Profiling:
    """Take the profiles of this process."""

    def __init__(self) -> None:
        self._sampling = False

    async def answer(self, request: Request, name: str) -> Response:
        """Answer `/debug/pprof/NAME`."""
        served: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "": self._index,
            "cmdline": self._cmdline,
            "goroutine": self._stacks,
            "heap": self._heap,
            "profile": self._profile,
            "symbol": self._symbol,
        }
        if request.method not in ("GET", "HEAD") and name != "symbol":
            return plain(405, f"{request.method} is not allowed here\n")
        if name in served:
            return await served[name](request)
        why = "a profile of Go's runtime, which this agent does not have" if name in _OF_GO else "no profile"
        return plain(404, f"{name}: {why}; there are {', '.join(filter(None, sorted(served)))}\n")

    async def _index(self, request: Request) -> Response:
        return Response(200, TEXT, _INDEX.encode())

    async def _cmdline(self, request: Request) -> Response:
        return Response(200, TEXT, Path("/proc/self/cmdline").read_bytes().rstrip(b"\0"))

    async def _symbol(self, request: Request) -> Response:
        return Response(200, TEXT, b"num_symbols: 0\n")

    async def _stacks(self, request: Request) -> Response:
        return Response(200, TEXT, (await all_stacks()).encode(errors="backslashreplace"))

    async def _heap(self, request: Request) -> Response:
        counted = await asyncio.to_thread(objects_by_type)
        return Response(200, TEXT, counted.encode(errors="backslashreplace"))

    async def _profile(self, request: Request) -> Response:
        seconds = _seconds(request)
        if seconds is None:
            return plain(400, f"seconds: expected a whole number from 1 to {MOST_SECONDS}\n")
        if self._sampling:
            return plain(500, BUSY)
        self._sampling = True
        ended = threading.Event()
        try:
            folded = await asyncio.to_thread(sampled_stacks, seconds, ended)
        finally:
            ended.set()
            self._sampling = False
        return Response(200, TEXT, folded.encode(errors="backslashreplace"))


def _seconds(request: Request) -> int | None:
    text = request.query.get("seconds", str(DEFAULT_SECONDS))
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 0 < int(text) <= MOST_SECONDS):
        return None
    return int(text)


def sampled_stacks(seconds: float, ended: threading.Event) -> str:
    """Sample all threads but the caller's; return folded stacks, the most frequent first.

    Returns early once `ended` is set. Of stacks beyond `MOST_STACKS` only the number is kept.
    """
    own, counts = threading.get_ident(), Counter[str]()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not ended.wait(1 / SAMPLES_PER_SECOND):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident == own:
                continue
            stack = folded(names.get(ident, f"thread {ident}"), frame)
            counts[stack if stack in counts or len(counts) < MOST_STACKS else "other stacks"] += 1
    return "".join(f"{stack} {count}\n" for stack, count in counts.most_common())


def folded(thread: str, frame: FrameType | None) -> str:
    """Return the names of the innermost `MOST_DEPTH` frames, the outermost first."""
    names: list[str] = []
    while frame is not None and len(names) < MOST_DEPTH:
        code = frame.f_code
        names.append(f"{Path(code.co_filename).stem}.{code.co_qualname}")
        frame = frame.f_back
    return ";".join((thread.replace(";", ":"), *reversed(names)))


async def all_stacks() -> str:
    """Return the stacks of all tasks of this event loop and of all threads, the innermost frame last."""
    parts = []
    for number, task in enumerate(sorted(asyncio.all_tasks(), key=lambda each: each.get_name())):
        if number % TASKS_IN_A_TURN == TASKS_IN_A_TURN - 1:
            await asyncio.sleep(0)
        parts.append(f"task {task.get_name()}:\n{_lines(task.get_stack(limit=MOST_DEPTH))}")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, innermost in sys._current_frames().items():
        frames: list[FrameType] = []
        frame: FrameType | None = innermost
        while frame is not None and len(frames) < MOST_DEPTH:
            frames.append(frame)
            frame = frame.f_back
        parts.append(f"thread {names.get(ident, ident)}:\n{_lines(reversed(frames))}")
    return "\n".join(parts)


def _lines(frames: Iterable[FrameType]) -> str:
    return "".join(
        f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_qualname}\n'
        for frame in frames
    )


def objects_by_type() -> str:
    """Return how many objects of each type the garbage collector follows, and their own sizes in bytes."""
    counts, sizes = Counter[str](), Counter[str]()
    for each in gc.get_objects():
        kind = type(each)
        name = f"{kind.__module__}.{kind.__qualname__}"
        counts[name] += 1
        sizes[name] += sys.getsizeof(each, 0)
    lines = [f"{counts[name]:>10} {size:>14} {name}" for name, size in sizes.most_common(MOST_TYPES)]
    total = f"{counts.total():>10} {sizes.total():>14} all"
    return "\n".join((f"{'objects':>10} {'bytes':>14} type", *lines, total, ""))


PROFILING: Final = Profiling()
"""Of the process: it has one profile at a time, however many ports ask."""
