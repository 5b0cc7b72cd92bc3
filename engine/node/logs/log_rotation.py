"""Keeps container logs within `containerLogMaxSize` and `containerLogMaxFiles`.

A log that is too large is renamed to `<log>.<time>`, and the runtime opens a new one. The latest rotated
file stays uncompressed, since a reader may be in it; older ones are compressed, and the oldest deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, KubengineError, Refused
from engine.api.quantity import Quantity
from engine.cri.client import RuntimeClient
from engine.cri.records import ContainerRecord
from engine.host.files import remove_unfinished, replacing_file
from engine.host.node_context import NodeContext
from engine.host.safe_open import open_regular, opened, opened_parent, same_file
from engine.host.trees import remove_tree

log = logging.getLogger("kubengine.logs")

COMPRESSED = ".gz"
UNFINISHED = ".tmp"
STEP_SECONDS = 600.0


def log_limits(config: KubeletConfiguration) -> tuple[int, int]:
    """Return the size limit in bytes, negative for none, and the number of files. Raises `InvalidInput`."""
    size = Quantity.parse(config.container_log_max_size).value
    if config.container_log_max_files <= 1:
        text = f"expected more than 1, got {config.container_log_max_files}"
        raise InvalidInput(text, subject="containerLogMaxFiles")
    return size, config.container_log_max_files


def rotated_name(path: Path, now: float) -> Path:
    return path.with_name(f"{path.name}.{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}")


def surplus(rotated: Iterable[Path], max_files: int) -> tuple[list[Path], list[Path]]:
    """Return which rotated files of a log to delete and which to compress, leaving space for one more.

    The names sort by time. Files that a kubelet left half compressed are deleted.
    """
    names = sorted(rotated, key=lambda path: path.name.removesuffix(COMPRESSED))
    unfinished = [path for path in names if path.name.endswith(UNFINISHED)]
    finished = [path for path in names if not path.name.endswith(UNFINISHED)]
    excess = max(0, len(finished) - (max_files - 2))
    plain = [path for path in finished[excess:] if path.suffix != COMPRESSED]
    return [*unfinished, *finished[:excess]], plain


class LogRotation:
    """Rotate the logs of the containers that `running()` returns.

    All logs are examined every `containerLogMonitorInterval`; `containerLogMaxWorkers` are rotated at the
    same time.
    """

    def __init__(
        self,
        context: NodeContext,
        runtime: RuntimeClient,
        running: Callable[[], Iterable[ContainerRecord]],
    ) -> None:
        config = context.config
        self._max_size, self._max_files = log_limits(config)
        self._interval = float(config.container_log_monitor_interval)
        self._workers = config.container_log_max_workers
        self._logs = config.pod_logs_dir
        self._runtime = runtime
        self._running = running
        self._clock = context.clock
        self._task = context.tasks.task("log-rotation")

    async def start(self) -> None:
        if self._max_size >= 0:
            self._task.start(self._loop)

    async def stop(self) -> None:
        await self._task.stop()

    async def _loop(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            with self._task.step(STEP_SECONDS):
                await self._rotate_large()

    async def _rotate_large(self) -> None:
        logs = {container.log_path: container for container in self._running() if container.log_path}
        # One iterator for all workers, so that each log is taken by one of them.
        large = iter(await asyncio.to_thread(_larger_than, self._max_size, list(logs)))

        async def work() -> None:
            for path in large:
                await self._try(logs[path], Path(path))

        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(work())

    async def _try(self, container: ContainerRecord, path: Path) -> None:
        try:
            await self._rotate(container, path)
        except FileNotFoundError:
            return
        except (KubengineError, OSError) as error:
            log.warning("log %s could not be rotated: %s", path, error)

    async def _rotate(self, container: ContainerRecord, path: Path) -> None:
        with opened_parent(path, self._logs) as (directory, name):
            held = Path(same_file(directory), name)
            await asyncio.to_thread(_remove_excess_logs, held, self._max_files)
            moved = rotated_name(held, self._clock())
            held.rename(moved)
            try:
                await self._runtime.reopen_container_log(container.id)
            except Refused:
                # The runtime still writes to the open file: under its old name the next check finds it again.
                with contextlib.suppress(OSError):
                    moved.rename(held)
                raise


def _larger_than(size: int, paths: Sequence[str]) -> list[str]:
    """Return the logs above the limit. Runs in a thread, because thousands of stat calls would block the
    event loop.
    """
    found = []
    for path in paths:
        try:
            if os.lstat(path).st_size > size:
                found.append(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("log %s could not be checked for rotation: %s", path, error)
    return found


def _remove_excess_logs(path: Path, max_files: int) -> None:
    """Delete and compress rotated files. `path` begins with a descriptor, so nobody can swap the
    directory.
    """
    remove_unfinished(path.parent)
    delete, compress = surplus(path.parent.glob(f"{path.name}.*"), max_files)
    for old in delete:
        remove_tree(old)
    if not compress:
        return
    # Few nodes have logs that are long enough to need these and their libraries.
    import gzip
    import shutil

    with opened(path.parent) as directory:
        for old in compress:
            try:
                plain = open_regular(directory, old.name)
            except OSError:
                remove_tree(old)  # a link or a FIFO; no runtime creates those here
                continue
            with (
                os.fdopen(plain, "rb") as source,
                replacing_file(old.with_name(f"{old.name}{COMPRESSED}")) as target,
                gzip.open(target, "wb") as zipped,
            ):
                shutil.copyfileobj(source, zipped)
            old.unlink()
