"""Run the test API server for tests and programs that are not asynchronous."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.testing.apiserver import ApiServer
from engine.testing.loop_thread import LoopThread, Synchronous


class ThreadedApiServer(Synchronous):
    """Run a test API server in a thread of its own; its methods are those of `ApiServer`, without `await`.

    A context manager. `server.fail(ApiServerFault.HANG, path="/pods")` plans faults.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ka-")))
        thread = self._stack.enter_context(LoopThread())
        server: ApiServer = thread.call(lambda: ApiServer(directory))
        super().__init__(thread, server)

    def __enter__(self) -> Self:
        self._thread.call(self._target.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            self._thread.call(self._target.stop)
