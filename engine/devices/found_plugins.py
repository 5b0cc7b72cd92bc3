"""Registers device plugins that the plugin watcher finds, the second way of registration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput
from engine.devices.registration import VERSION, Connect, check_resource_name

DEVICE_PLUGIN: Final = "DevicePlugin"


class FoundDevicePlugins:
    """Handle plugins whose names are resources, for `engine.plugins.watcher.PluginHandler`."""

    def __init__(self, connect: Connect, disconnect: Callable[[str, Path], Awaitable[None]]) -> None:
        self._connect = connect
        self._disconnect = disconnect

    def check(self, name: str, socket: Path, versions: Sequence[str]) -> None:
        if VERSION not in versions:
            text = f"manager version, {VERSION}, is not among plugin supported versions {list(versions)}"
            raise InvalidInput(text)
        try:
            check_resource_name(name)
        except InvalidInput as error:
            raise InvalidInput(f"invalid name of device plugin socket: {error.message}") from None

    async def register(self, name: str, socket: Path, versions: Sequence[str]) -> None:
        await self._connect(name, socket)

    async def deregister(self, name: str, socket: Path) -> None:
        await self._disconnect(name, socket)
