"""Walking through an agent's life again and again, with one fault in each."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import traceback
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from engine.api.errors import KubengineError
from engine.host.mounts import unmount_below
from engine.runtime.hollow import HollowRuntime
from engine.runtime.image_service import ImageService
from engine.runtime.server import CriServer
from tests.node.faults import KINDS, WHOLE, FailingService, FileFault, current
from tests.node_rig import Rig
from tests.waiting import eventually

AT_ONCE = 10
"""Each has two inotify instances, of which a user may have 128 by default; other tests run beside a walk."""


class Life:
    """Run agents, one after another, on a hollow runtime of their own, from the first start to the last
    stop. The runtime's `method` fails the `at`-th time as `kind` says."""

    rig: Rig

    def __init__(self, directory: Path, method: str = "", at: int = 1, kind: str = KINDS[0]) -> None:
        self.runtime = HollowRuntime(directory / "cri.sock")
        self.calls: dict[str, int] = {}

        def failing(service: object) -> FailingService:
            return FailingService(service, self.calls, method, at, kind)

        services = {"RuntimeService": self.runtime.service, "ImageService": ImageService(self.runtime.images)}
        self.runtime._server = CriServer(self.runtime.socket, {k: failing(s) for k, s in services.items()})
        self.errors: list[Exception] = []

    @abstractmethod
    async def live(self) -> None:
        """Run the whole life. Raise AssertionError if anything in it is not right."""

    @abstractmethod
    async def prepare(self) -> None:
        """Prepare what exists before the agent starts. No fault occurs in it."""

    @abstractmethod
    async def clear(self) -> None:
        """Remove what `prepare` created."""

    async def whole(self, fault: FileFault | None = None) -> None:
        async with self.runtime:
            await self.prepare()
            token = current.set(fault)
            try:
                await self.live()
            finally:
                if self.rig.node is not None:
                    await self.rig.node.stop()
                current.reset(token)
                await self.clear()

    async def start(self) -> None:
        try:
            await self.rig.start()
        except (KubengineError, OSError) as error:
            self.errors.append(error)
            await self.stop()
            await self.rig.start()

    async def stop(self) -> None:
        try:
            await self.rig.stop()
        except (KubengineError, OSError) as error:
            self.errors.append(error)


async def walk(lives: Iterable[Coroutine[Any, Any, str]]) -> None:
    """Live all of them, `AT_ONCE` at a time, and fail with what went wrong in each.

    A walk through every fault takes an hour or more: it reports each minute how far it is.
    """
    places = asyncio.Semaphore(AT_ONCE)

    async def one(life: Coroutine[Any, Any, str]) -> str:
        async with places:
            return await life

    tasks = [asyncio.create_task(one(life)) for life in lives]
    before = asyncio.all_tasks() - set(tasks)
    reporter = asyncio.create_task(_report_progress(tasks)) if WHOLE else None
    wrong = [text for text in await asyncio.gather(*tasks) if text]
    if reporter is not None:
        reporter.cancel()
    assert not wrong, f"{len(wrong)} of {len(tasks)}:\n" + "\n".join(wrong)
    gc.collect()
    await eventually(lambda: asyncio.all_tasks() <= before)


async def _report_progress(tasks: Sequence[asyncio.Task[str]]) -> None:
    """Print each minute how many of the lives are over, and what went wrong since the last line.

    It writes past pytest's `--capture=sys`, which `make chaos` asks for.
    """
    reported: set[asyncio.Task[str]] = set()
    while True:
        await asyncio.sleep(60)
        over = {task for task in tasks if task.done()}
        wrong = [text for task in over - reported if (text := task.result())]
        reported = over
        print(f"{len(over)} of {len(tasks)} lives", *wrong, sep="\n  ", file=sys.__stderr__, flush=True)


async def places_of(lives: Callable[[Path], Life]) -> list[str]:
    """Return the place of each file operation in a life without a fault."""
    seen = FileFault()
    assert not await with_file_fault(seen, lives)
    return seen.places


async def with_file_fault(fault: FileFault, lives: Callable[[Path], Life]) -> str:
    """Return what went wrong in a life in which the `at`-th file operation fails, or ""."""
    text = await _lived(lives, ("/", "inotify:"), fault)
    where = fault.places[fault.at - 1] if fault.met else "nowhere"
    return f"operation {fault.at} fails with {fault.error} ({where}): {text}" if text else ""


async def with_call_fault(lives: Callable[[Path], Life], what: str) -> str:
    """Return what went wrong in a life with a failing CRI call, or ""."""
    text = await _lived(lives, ("CRI ",))
    return f"{what}: {text}" if text else ""


async def with_request_fault(lives: Callable[[Path], Life], what: str) -> str:
    """Return what went wrong in a life with a failing request to the API server, or ""."""
    text = await _lived(lives, ("127.0.0.1:",))
    return f"{what}: {text}" if text else ""


async def _lived(lives: Callable[[Path], Life], things: Sequence[str], fault: FileFault | None = None) -> str:
    """Run a life, and return what went wrong, with the errors that name none of the `things`, or ""."""
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        life = lives(Path(short))
        try:
            await life.whole(fault)
            unnamed = [str(e) for e in life.errors if not any(thing in str(e) for thing in things)]
            text = "; ".join(f"does not name it: {error}" for error in unnamed)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            last = [frame for frame in frames if f"{os.sep}tests{os.sep}" in frame.filename][-1]
            text = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        held = _held_open(short)
        unmount_below(Path(short))
    return "; ".join(filter(None, (text, held)))


def _held_open(directory: str) -> str:
    """Return the descriptors of files below the directory."""
    found = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = str(Path(entry.path).readlink())
        except OSError:
            continue
        if target.startswith(directory):
            found.append(target)
    return f"still open: {found}" if found else ""
