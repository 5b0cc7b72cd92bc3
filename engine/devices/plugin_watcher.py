"""The plugin watcher: sockets that appear below `plugins_registry` are asked who they are.

The second way for a device plugin to register (`pluginregistration.Registration`: GetInfo, then
NotifyRegistrationStatus). Names that begin with a dot and files that are not sockets are passed over.
Each socket has a task of its own, so that a hanging plugin keeps nobody else waiting.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Protocol

from engine.api.errors import InvalidInput, KubengineError, Refused, Unavailable
from engine.api.grpc_codes import rpc_error
from engine.devices.endpoint import Deadlines, check_socket_path
from engine.devices.plugin_channel import PluginChannel
from engine.devices.registration import VERSION, Connect, check_resource_name
from engine.host.tasks import Tasks
from engine.transport.grpc_channel import CallFailed
from engine.wire import pluginregistration_v1_pb2 as wire

SERVICE = "/pluginregistration.Registration/"
DEVICE_PLUGIN = "DevicePlugin"
APPEARANCES = 0x100 | 0x080 | 0x200 | 0x040
"""inotify(7): IN_CREATE, IN_MOVED_TO, IN_DELETE, IN_MOVED_FROM."""
OVERFLOW = 0x4000
"""inotify(7): IN_Q_OVERFLOW, events were lost."""
FIRST_RETRY = 0.5
LAST_RETRY = 122.0
MAX_SOCKETS = 1000
MAX_INFO = 4 * 1024 * 1024

log = logging.getLogger("kubengine.devices")


class DirectoryWatch(Protocol):
    """An inotify instance; `engine.host.inotify.Watch` is one."""

    def add(self, directory: Path, mask: int) -> None: ...

    def close(self) -> None: ...


MakeWatch = Callable[[Callable[[int, Path, str], None]], DirectoryWatch]
"""Makes a watch that calls `on_event(mask, directory, name)` on the running loop."""


class PluginWatcher:
    """Watches `directory` and its subdirectories.

    `connect(resource, socket)` takes a plugin on; `disconnect(resource, socket)` lets go of it when its
    socket is removed. A socket that does not answer is tried again, ever more rarely, while it exists.
    """

    def __init__(
        self,
        directory: Path,
        connect: Connect,
        disconnect: Callable[[str, Path], Awaitable[None]],
        deadlines: Deadlines,
        make_watch: MakeWatch,
        tasks: Tasks,
    ) -> None:
        self._directory = directory
        self._connect = connect
        self._disconnect = disconnect
        self._deadlines = deadlines
        self._make_watch = make_watch
        self._watch: DirectoryWatch | None = None
        self._watched: set[Path] = set()
        self._serving = tasks.passing("plugin-socket")
        self._tasks: dict[Path, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Watch, and take on the sockets that are there already."""
        self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._watch = self._make_watch(self._event)
        self._scan(self._directory)

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        await self._serving.stop()
        self._tasks.clear()

    def _event(self, mask: int, directory: Path, name: str) -> None:
        if mask & OVERFLOW:
            self._scan(self._directory)
        elif name:
            self._look(directory / name)

    def _scan(self, directory: Path) -> None:
        assert self._watch is not None
        if directory not in self._watched:
            self._watched.add(directory)
            self._watch.add(directory, APPEARANCES)
        for entry in directory.iterdir():
            self._look(entry)

    def _look(self, path: Path) -> None:
        """Take on a path that appeared, or end what was done for one that is gone."""
        try:
            mode = path.lstat().st_mode
        except OSError:
            self._watched.discard(path)
            task = self._tasks.pop(path, None)
            if task is not None:
                task.cancel()
            return
        if path.name.startswith("."):
            return
        if stat.S_ISDIR(mode):
            self._scan(path)
        elif stat.S_ISSOCK(mode):
            earlier = self._tasks.pop(path, None)
            if earlier is not None:
                earlier.cancel()
            elif len(self._tasks) >= MAX_SOCKETS:
                log.error("%s: %d plugin sockets are the most; passed over", path, MAX_SOCKETS)
                return
            self._tasks[path] = self._serving.start(self._serve(path), str(path))

    async def _serve(self, path: Path) -> None:
        """Register one socket and hold on to it until it is removed."""
        delay = FIRST_RETRY
        while True:
            try:
                resource, endpoint = await self._register(path)
                break
            except KubengineError as error:
                log.warning("plugin socket %s: %s", path, error)
                if isinstance(error, InvalidInput):
                    return
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_RETRY)
        try:
            await asyncio.Event().wait()
        finally:
            if self._watch is not None:
                await self._disconnect(resource, endpoint)

    async def _register(self, path: Path) -> tuple[str, Path]:
        check_socket_path(path)
        with closing(PluginChannel(path, limit=MAX_INFO)) as channel:
            info = await self._info(channel, path)
            endpoint = Path(info.endpoint) if info.endpoint else path
            failure: KubengineError | None = None
            try:
                _check(info)
                await self._connect(info.name, endpoint)
            except KubengineError as error:
                failure = error
            status = wire.RegistrationStatus(plugin_registered=failure is None, error=str(failure or ""))
            method = f"{SERVICE}NotifyRegistrationStatus"
            try:
                await channel.call(method, status, wire.RegistrationStatusResponse, self._deadlines.notify)
            except CallFailed as error:
                said = f"NotifyRegistrationStatus: {rpc_error(error.status, error.details)}"
                failure = failure or Refused(said, subject=str(path))
        if failure is not None:
            raise failure
        return info.name, endpoint

    async def _info(self, channel: PluginChannel, path: Path) -> wire.PluginInfo:
        request, seconds = wire.InfoRequest(), self._deadlines.get_info
        try:
            await channel.reach(self._deadlines.dial)
            return await channel.call(f"{SERVICE}GetInfo", request, wire.PluginInfo, seconds)
        except Unavailable as error:
            raise Unavailable(error.message, subject=str(path)) from None
        except CallFailed as error:
            said = f"GetInfo: {rpc_error(error.status, error.details)}"
            raise Unavailable(said, subject=str(path)) from None


def _check(info: wire.PluginInfo) -> None:
    """`InvalidInput` with the kubelet's words unless the plugin is one of ours."""
    if info.type != DEVICE_PLUGIN:
        raise InvalidInput(f"no handler registered for plugin type: {info.type}")
    if VERSION not in info.supported_versions:
        raise InvalidInput(
            f"manager version, {VERSION}, is not among plugin supported versions "
            f"{list(info.supported_versions)}"
        )
    try:
        check_resource_name(info.name)
    except InvalidInput as error:
        raise InvalidInput(f"invalid name of device plugin socket: {error.message}") from None
