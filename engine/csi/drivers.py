"""Tracks the drivers that the plugin watcher finds on this node, and reports them to the cluster."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from engine.api.errors import InvalidInput, KubengineError, Refused, Unavailable
from engine.csi.driver_calls import CsiDriver
from engine.csi.records import DriverRecords
from engine.csi.volume import SAYS
from engine.metrics import Registry

WAIT_SECONDS: Final = 5.0
"""Seconds that a volume waits for its driver. After a restart of the agent, drivers register while pods
start.
"""

_NAME = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9.]{0,61}[a-zA-Z0-9])?")
_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(?:[-+].*)?", re.ASCII)

log = logging.getLogger("kubengine.csi")


class _Registered(msgspec.Struct, frozen=True):
    socket: Path
    version: tuple[int, ...]
    client: CsiDriver


class CsiDrivers:
    """Register drivers for `engine.plugins.watcher.PluginHandler`. Listeners are called with the name of each
    registered driver.
    """

    def __init__(self, records: DriverRecords, registry: Registry) -> None:
        self._records = records
        self._registry = registry
        self._known: dict[str, _Registered] = {}
        self._news = asyncio.Event()
        self._on_registration: list[Callable[[str], None]] = []

    def on_registration(self, callback: Callable[[str], None]) -> None:
        self._on_registration.append(callback)

    def names(self) -> list[str]:
        return sorted(self._known)

    def get(self, name: str) -> CsiDriver:
        """Return a driver. Raises `Unavailable` if it is not registered."""
        known = self._known.get(name)
        if known is None:
            raise Unavailable(f"driver name {name} not found in the list of registered CSI drivers")
        return known.client

    async def wait_for(self, name: str, seconds: float = WAIT_SECONDS) -> CsiDriver:
        """Wait up to `seconds` for the driver, then return it as `get` does."""
        try:
            async with asyncio.timeout(seconds):
                while name not in self._known:
                    await self._news.wait()
        except TimeoutError:
            pass
        return self.get(name)

    def check(self, name: str, socket: Path, versions: Sequence[str]) -> None:
        whose = f"validation failed for CSI Driver {name} at endpoint {socket}: "
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{whose}expected the name of a driver, got {name!r}")
        about = f"{whose}{SAYS}ValidatePlugin for CSI driver {_quoted(name)} failed. "
        if not versions:
            raise InvalidInput(f"{about}Plugin returned an empty list for supported versions")
        version = highest_version(versions)
        if version is None:
            listed = " ".join(map(_quoted, versions))
            raise InvalidInput(f"{about}None of the versions specified [{listed}] are supported")
        known = self._known.get(name)
        if known is not None and known.version >= version:
            higher = _quoted(".".join(map(str, known.version)))
            text = "Another driver with the same name is already registered with a higher supported version: "
            raise Refused(f"{about}{text}{higher}")

    async def register(self, name: str, socket: Path, versions: Sequence[str]) -> None:
        """Register a driver. It can be used once its id of this node is in the CSINode."""
        from engine.csi.driver_client import CsiDriverClient  # a node without drivers has no use for it

        client = CsiDriverClient(name, socket, self._registry)
        try:
            info = await client.info()
            await self._records.install(name, info.node_id, info.most_volumes, info.topology)
        except BaseException as error:
            client.close()
            # An agent before may have recorded the driver: pods would still be sent for its volumes.
            if isinstance(error, KubengineError) and name not in self._known:
                await self._uninstall(name)
            raise
        earlier = self._known.get(name)
        self._known[name] = _Registered(socket, highest_version(versions) or (), client)
        if earlier is not None:
            earlier.client.close()
        self._records.start_limit_updates(name, lambda: self._refresh_limit(name))
        self._notify(name)

    async def exhausted(self, name: str) -> bool:
        """Refresh the limit of a driver that cannot attach further volumes; return whether the limit may
        change.
        """
        return await self._records.exhausted(name)

    async def _refresh_limit(self, name: str) -> None:
        """Read the volume limit from the driver and update it in the cluster. Raises `Refused`."""
        known = self._known.get(name)
        if known is not None:
            info = await known.client.info()
            await self._records.update_limit(name, info.most_volumes)

    async def deregister(self, name: str, socket: Path) -> None:
        known = self._known.get(name)
        if known is None or known.socket != socket:
            return
        del self._known[name]
        known.client.close()
        await self._uninstall(name)

    async def _uninstall(self, name: str) -> None:
        try:
            await self._records.uninstall(name)
        except Refused as error:
            log.error("driver %s is not registered, and the CSINode could not be updated: %s", name, error)

    def close(self) -> None:
        """Close the connections; registrations stay."""
        for known in self._known.values():
            known.client.close()
        self._known.clear()

    def _notify(self, name: str) -> None:
        self._news.set()
        self._news = asyncio.Event()
        for callback in self._on_registration:
            callback(name)


def highest_version(versions: Sequence[str]) -> tuple[int, ...] | None:
    """Return the highest 1.x or 0.x version among a driver's CSI versions; None if there is none."""
    found = [
        tuple(int(part or 0) for part in match.groups())
        for match in map(_VERSION.fullmatch, versions)
        if match is not None and int(match[1]) <= 1
    ]
    return max(found, default=None)


def _quoted(text: str) -> str:
    return f'"{text}"'
