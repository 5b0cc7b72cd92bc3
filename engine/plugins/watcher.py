"""The plugin watcher: identifies the plugins behind sockets that appear below `plugins_registry`.

A plugin (`pluginregistration.Registration`) answers GetInfo, and NotifyRegistrationStatus informs it whether
the handler of its type accepted it. Names that begin with a dot and files that are not sockets are ignored.
Each socket has its own task, so that a hanging plugin delays no other; a plugin is deregistered before the
next one at the same path is registered.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import stat
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import count, islice
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec

from engine.api.errors import InvalidInput, KubengineError, Refused, Unavailable
from engine.api.grpc_codes import rpc_error
from engine.host.inotify import IN_CREATE, IN_DELETE, IN_MOVED_FROM, IN_MOVED_TO, IN_Q_OVERFLOW, InotifyWatch
from engine.host.tasks import Tasks
from engine.plugins.channel import PluginChannel, check_socket_path
from engine.plugins.retries import RETRIES
from engine.transport.grpc_channel import CallFailed
from engine.wire import pluginregistration_v1_pb2 as wire

SERVICE = "/pluginregistration.Registration/"
MAX_SOCKETS = 1000
MAX_DEPTH = 32
MAX_ENTRIES = 10_000
_APPEARANCES = IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_MOVED_FROM
_FAILED = "RegisterPlugin error -- "

log = logging.getLogger("kubengine.plugins")


class RegistrationDeadlines(msgspec.Struct, frozen=True):
    """Hold the seconds that a plugin has (kubelet v1.36)."""

    dial: float = 10
    get_info: float = 1
    notify: float = 5


class PluginHandler(Protocol):
    """Handle plugins of one type. `socket` is where a plugin of this `name` answers."""

    def check(self, name: str, socket: Path, versions: Sequence[str]) -> None:
        """Raise `InvalidInput` for a plugin that is never accepted, `Refused` for one that may be later."""

    async def register(self, name: str, socket: Path, versions: Sequence[str]) -> None:
        """Register the plugin. Raise a `KubengineError` if that fails."""

    async def deregister(self, name: str, socket: Path) -> None:
        """Forget the plugin after its socket is gone, unless another has replaced it."""


class PluginWatcher:
    """Watch `directory` and its subdirectories. `handlers` by kind: DevicePlugin, CSIPlugin.

    A socket that does not answer, or is refused, is tried again, ever more rarely, while it exists.
    """

    def __init__(
        self,
        directory: Path,
        handlers: Mapping[str, PluginHandler],
        tasks: Tasks,
        deadlines: RegistrationDeadlines | None = None,
    ) -> None:
        self._directory = directory
        self._handlers = handlers
        self._deadlines = deadlines or RegistrationDeadlines()
        self._watch: InotifyWatch | None = None
        self._serving = tasks.passing("plugin-socket")
        self._tasks: dict[Path, asyncio.Task[None]] = {}
        self._turns: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()
        self._unread: set[Path] = set()

    async def start(self) -> None:
        """Watch the directory, and register the plugins with sockets in it."""
        self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._directory = self._directory.resolve()
        self._watch = InotifyWatch(self._event)
        self._scan(self._directory)

    async def stop(self) -> None:
        """Stop watching; registered plugins stay registered."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        await self._serving.stop()
        self._tasks.clear()
        self._unread.clear()

    def _event(self, mask: int, directory: Path, name: str) -> None:
        if mask & IN_Q_OVERFLOW:
            # Also removals may be among the lost events.
            self._end_missing(self._directory)
            self._scan(self._directory)
        elif name:
            self._examine(directory / name)

    def _scan(self, directory: Path) -> None:
        """Examine a directory and everything below it, MAX_DEPTH levels and MAX_ENTRIES at most.

        Other processes write here: each directory may be removed or replaced at any step.
        """
        waiting, seen = [directory], 0
        while waiting:
            now = waiting.pop()
            # Plugins own these directories: one of them must not keep the agent busy without end.
            if len(now.relative_to(self._directory).parts) > MAX_DEPTH:
                log.error("%.200s: more than %d levels of directories; ignored", now, MAX_DEPTH)
                continue
            entries = self._entries(now)
            if entries is None:
                self._read_later(now)
                continue
            for entry in entries:
                seen += 1
                if seen > MAX_ENTRIES:
                    log.error("%s: more than %d entries; the others are ignored", directory, MAX_ENTRIES)
                    return
                if self._take(entry):
                    waiting.append(entry)

    def _entries(self, directory: Path) -> list[Path] | None:
        """Watch a directory, again if another one has its name, and list it; return nothing if it is gone,
        and None if it cannot be read.
        """
        assert self._watch is not None
        try:
            # Watched before it is listed: a socket that appears in between is examined twice, not missed.
            self._watch.add(directory, _APPEARANCES)
            return list(islice(directory.iterdir(), MAX_ENTRIES + 1))
        except FileNotFoundError:
            return []
        except (OSError, Refused) as error:
            if isinstance(error, Refused) and error.errno == errno.ENOENT:
                return []
            log.error("%.200s: cannot be watched, and is tried again: %s", directory, error)
            return None

    def _read_later(self, directory: Path) -> None:
        if directory not in self._unread:
            self._unread.add(directory)
            self._serving.start(self._read_again(directory), str(directory))

    async def _read_again(self, directory: Path) -> None:
        """Try to read a directory, ever more rarely: without descriptors for a moment, its plugins would
        stay unknown for as long as they run.
        """
        for failures in count(1):
            await asyncio.sleep(RETRIES.after(failures))
            if self._entries(directory) is not None:
                break
        self._unread.discard(directory)
        self._scan(directory)

    def _examine(self, path: Path) -> None:
        if self._take(path):
            self._scan(path)

    def _take(self, path: Path) -> bool:
        """Serve a path that appeared, or end the service of one that is gone.

        Return whether it is a directory.
        """
        try:
            mode = path.lstat().st_mode
        except OSError:
            self._end(path)
            self._end_missing(path)
            return False
        if path.name.startswith("."):
            return False
        if stat.S_ISDIR(mode):
            return True
        # A plugin that restarts replaces its socket under the same name, and has to be registered again.
        if stat.S_ISSOCK(mode):
            # Also for an event of an earlier socket: registering twice is harmless, missing a restart is not.
            self._end(path)
            if len(self._tasks) >= MAX_SOCKETS:
                log.error("%s: ignored, the limit of %d plugin sockets is reached", path, MAX_SOCKETS)
                return False
            # The lock lives as long as a task holds it, so that paths of plugins that are gone take no
            # memory.
            turn = self._turns.setdefault(path, asyncio.Lock())
            self._tasks[path] = self._serving.start(self._serve(path, turn), str(path))
        return False

    def _end_missing(self, directory: Path) -> None:
        """End the service of sockets below a directory that are gone, as all are if it was moved away."""
        for path in [path for path in self._tasks if directory in path.parents and not path.is_socket()]:
            self._end(path)

    def _end(self, path: Path) -> None:
        task = self._tasks.pop(path, None)
        if task is not None:
            task.cancel()

    async def _serve(self, path: Path, turn: asyncio.Lock) -> None:
        """Register one socket and keep it registered until it is removed."""
        # The earlier task of this path must have deregistered its plugin before this one registers the next.
        async with turn:
            for failures in count(1):
                try:
                    handler, name, endpoint = await self._register(path)
                    break
                except KubengineError as error:
                    log.warning("plugin at %s not registered: %s", path, error)
                    if isinstance(error, InvalidInput):
                        return  # it stays invalid until its plugin replaces the socket
                await asyncio.sleep(RETRIES.after(failures))
            log.info("plugin %s registered with the endpoint %s", name, endpoint)
            try:
                # Until the task is cancelled, by `_end` or `stop`.
                await asyncio.Event().wait()
            finally:
                if self._watch is not None:
                    await handler.deregister(name, endpoint)

    async def _register(self, path: Path) -> tuple[PluginHandler, str, Path]:
        check_socket_path(path)
        with closing(PluginChannel(path)) as channel:
            info = await plugin_info(channel, path, self._deadlines)
            # An empty endpoint means that the plugin answers on the registration socket itself.
            endpoint = Path(info.endpoint) if info.endpoint else path
            failure: KubengineError | None = None
            handler = self._handlers.get(info.type)
            try:
                if handler is None:
                    words = f"no handler registered for plugin type: {info.type} at socket {path}"
                    raise InvalidInput(f"{_FAILED}{words}")
                await _take_on(handler, info, endpoint)
            except KubengineError as error:
                failure = error
            try:
                await self._notify(channel, failure)
            except (CallFailed, asyncio.CancelledError) as error:
                if handler is not None and failure is None and self._watch is not None:
                    # A plugin that could not be told that it is registered would register again: both sides
                    # must agree. Its socket may also be gone, or another's, before it has answered.
                    await handler.deregister(info.name, endpoint)
                if isinstance(error, asyncio.CancelledError):
                    raise
                text = f"NotifyRegistrationStatus: {rpc_error(error.status, error.details)}"
                failure = failure or Refused(text, subject=str(path))
        if failure is not None:
            raise failure
        assert handler is not None
        return handler, info.name, endpoint

    async def _notify(self, channel: PluginChannel, failure: KubengineError | None) -> None:
        status = wire.RegistrationStatus(plugin_registered=failure is None, error=str(failure or ""))
        method, answer = f"{SERVICE}NotifyRegistrationStatus", wire.RegistrationStatusResponse
        await channel.call(method, status, answer, self._deadlines.notify)


async def plugin_info(
    channel: PluginChannel, path: Path, deadlines: RegistrationDeadlines
) -> wire.PluginInfo:
    """Ask a plugin who it is. Raise `Unavailable` naming its socket."""
    request, seconds = wire.InfoRequest(), deadlines.get_info
    try:
        await channel.reach(deadlines.dial)
        return await channel.call(f"{SERVICE}GetInfo", request, wire.PluginInfo, seconds)
    except Unavailable as error:
        raise Unavailable(error.message, subject=str(path)) from None
    except CallFailed as error:
        text = f"GetInfo: {rpc_error(error.status, error.details)}"
        raise Unavailable(text, subject=str(path)) from None


async def _take_on(handler: PluginHandler, info: wire.PluginInfo, endpoint: Path) -> None:
    """Register a plugin. Raise a `KubengineError` with the kubelet's message."""
    versions = list(info.supported_versions)
    doing = "validation"
    try:
        check_socket_path(endpoint)
        handler.check(info.name, endpoint, versions)
        doing = "registration"
        await handler.register(info.name, endpoint, versions)
    except KubengineError as error:
        kind = InvalidInput if isinstance(error, InvalidInput) and doing == "validation" else Refused
        raise kind(f"{_FAILED}plugin {doing} failed with err: {error}") from error
