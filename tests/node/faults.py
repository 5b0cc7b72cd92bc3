"""Faults for an agent in a test's context: the n-th file operation fails, or the n-th call of a method.

Tasks and threads take the context of whoever starts them along, so that many agents live side by side in
one process and each has its own fault.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from engine.api.errors import Refused, Unavailable
from engine.host import files, inotify, mounts, trees
from engine.host import safe_open as beneath
from engine.host.records import store as record_store
from engine.runtime.objects.failures import NoSuchObject, TimedOut

ENGINE = str(Path(files.__file__).parents[1]) + os.sep
PROGRAM = tuple(str(path) for path in (sys.prefix, sys.base_prefix, Path(ENGINE).parent))
OPERATIONS = frozenset(
    {
        "open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.scandir", "os.listdir",
        "os.link", "os.symlink", "os.truncate", "socket.bind", "socket.connect",
    }
)  # fmt: skip
ERRORS = (errno.EMFILE, errno.ENOSPC, errno.EIO, errno.ENOMEM)
PARTIAL = 0
"""Half of a file is written before the disk is full."""


WHOLE = bool(os.environ.get("KUBENGINE_EVERY_FAULT"))


@dataclass
class FileFault:
    """Fail the `at`-th operation on a file with `error`, and count all operations; with `at` 0, fail none.

    `places` are where the operations came from: file and line of the engine, and what was done.
    """

    at: int = 0
    error: int = errno.EIO
    places: list[str] = field(default_factory=list)

    def meet(self, operation: str, path: object = None) -> None:
        """Count an operation of the engine, and raise `OSError` if it is the `at`-th."""
        place = _place()
        if not place:
            return
        self.places.append(f"{place} {operation}")
        if len(self.places) == self.at:
            number = self.error or errno.ENOSPC
            raise OSError(number, os.strerror(number), path)

    @property
    def met(self) -> bool:
        return 0 < self.at <= len(self.places)


def in_turn(operations: Iterable[int]) -> list[FileFault]:
    """Return one fault for each operation, with the kinds of errors in rotation."""
    kinds = cycle((*ERRORS, PARTIAL))
    return [FileFault(at, error) for at, error in zip(operations, kinds, strict=False)]


def first_of_each(places: Sequence[str], left_out: Collection[str] = ()) -> list[FileFault]:
    """Plan one fault for the first operation at each place, except at those in `left_out`."""
    first = {place: at for at, place in reversed(list(enumerate(places, 1)))}
    return in_turn(at for place, at in first.items() if place not in left_out)


current: ContextVar[FileFault | None] = ContextVar("fault", default=None)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in OPERATIONS:
        fault = current.get()
        if fault is not None and not _of_the_program(arguments[0]):
            fault.meet(event, arguments[0])


def _of_the_program(path: object) -> bool:
    return isinstance(path, int) or (isinstance(path, str | Path) and str(path).startswith(PROGRAM))


def _place() -> str:
    """Return the file and line of the engine in the current stack, or "" if only a test is in it."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(ENGINE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(ENGINE)}:{frame.f_lineno}" if frame is not None else ""


class SyncingOs:
    """Replace `os` in the modules that write files, so that syncs, which raise no audit event, may fail
    too."""

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        fault = current.get()
        if fault is not None:
            try:
                fault.meet("fsync")
            except OSError:
                if fault.error == PARTIAL:
                    os.truncate(descriptor, os.fstat(descriptor).st_size // 2)
                raise
        os.fsync(descriptor)

    def fdatasync(self, descriptor: int) -> None:
        fault = current.get()
        if fault is not None:
            fault.meet("fdatasync")
        os.fdatasync(descriptor)


class FailingLibc:
    """Replace the C library of a module that calls it directly, so that these calls, which raise no audit
    event, may fail too."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._library, name)

        def call(*arguments: Any) -> Any:
            fault = current.get()
            if fault is not None:
                try:
                    fault.meet(name)
                except OSError as error:
                    ctypes.set_errno(error.errno or errno.EIO)
                    return -1
            return function(*arguments)

        return call


@cache
def _listen() -> None:
    """Install the hook once, because an audit hook stays as long as the process."""
    sys.addaudithook(_hook)


@contextmanager
def file_faults() -> Iterator[None]:
    """Let the operations of contexts with a `current` fault fail while this is entered."""
    _listen()
    with pytest.MonkeyPatch.context() as patch:
        for writer in (files, record_store):
            patch.setattr(writer, "os", SyncingOs())
        for module in (beneath, inotify, mounts, trees):
            patch.setattr(module, "_libc", FailingLibc(module._libc))
        yield


KINDS = ("unavailable", "deadline", "refused", "not found", "undecodable", "hangs", "answer lost")


class FailingService:
    """Wrap a CRI service whose `method` fails the `at`-th time as `kind` says, and only then.

    `calls` counts the calls of each method.
    """

    def __init__(self, service: object, calls: dict[str, int], method: str, at: int, kind: str) -> None:
        self._service = service
        self._calls = calls
        self._method, self._at, self._kind = method, at, kind

    def __getattr__(self, name: str) -> object:
        function = getattr(self._service, name)
        if name == "get_container_events":
            return self._stream(function, name)
        if not asyncio.iscoroutinefunction(function):
            return function
        return self._unary(function, name)

    def _due(self, name: str) -> bool:
        self._calls[name] = self._calls.get(name, 0) + 1
        return name == self._method and self._calls[name] == self._at

    def _unary(self, function: Callable[[Any], Awaitable[Any]], name: str) -> Callable[[Any], Awaitable[Any]]:
        async def call(request: Any) -> Any:
            if not self._due(name):
                return await function(request)
            if self._kind == "answer lost":
                await function(request)
            return await self._fail(name)

        return call

    def _stream(
        self, function: Callable[[Any], AsyncIterator[Any]], name: str
    ) -> Callable[[Any], AsyncIterator[Any]]:
        async def call(request: Any) -> AsyncIterator[Any]:
            if self._due(name):
                yield await self._fail(name)
            async for answer in function(request):
                yield answer

        return call

    async def _fail(self, name: str) -> bytes:
        match self._kind:
            case "unavailable" | "answer lost":
                raise Unavailable("told to be away", subject=name)
            case "deadline":
                raise TimedOut("told to be late", subject=name)
            case "refused":
                raise Refused("told to refuse", subject=name)
            case "not found":
                raise NoSuchObject("told to know nothing", subject=name)
            case "hangs":
                await asyncio.Event().wait()
        return b"\xff\xff\xff"
