"""Keeps track of registered drivers and their connections, and deletes the slices of those that vanish.

A driver may run several instances during a rolling update, each at a socket of its own: the newest that is
connected is called. When the last connection of a driver has been broken for WIPE_SECONDS, its ResourceSlices
of this node are deleted, so that the scheduler sends no pod to devices that nobody can prepare. When the
agent starts, no driver has registered yet, and the slices of all drivers are deleted.
Rules: kubelet v1.36, `pkg/kubelet/cm/dra/plugin`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from engine.api.duration import RetryDelays
from engine.api.errors import InvalidInput, KubengineError, Refused, Unavailable
from engine.dra.driver_calls import DraDriver, DraDriverFailed, NoHealth
from engine.dra.health import DeviceHealth
from engine.host.tasks import Tasks

DRA_PLUGIN: Final = "DRAPlugin"
"""The plugin watcher's word for drivers."""

SERVICES: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
WIPE_SECONDS: Final = 30.0
WIPE_RETRIES = RetryDelays(1.0, 300.0)
HEALTH_RETRY_SECONDS: Final = 5.0

_NAME = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9.]{0,61}[a-zA-Z0-9])?")
"""What an API server takes for a driver; it is a part of field selectors too."""

log = logging.getLogger("kubengine.dra")


class SliceRemoval(Protocol):
    """Delete ResourceSlices of this node."""

    async def delete(self, driver: str) -> None:
        """Delete the slices of a driver, or of all drivers if it is ''. Raises `KubengineError`."""


class HealthReports(Protocol):
    """Receive reports of the health of devices."""

    def listed(self, driver: str, devices: Sequence[DeviceHealth]) -> None:
        """Take over a driver's list. Raises `ValueError` for a list that is out of bounds."""

    def ended(self, driver: str) -> None:
        """Forget a driver's devices: nothing reports on them any longer."""


Connect = Callable[[str, Path, str], DraDriver]
"""Makes a client from a driver's name, socket and service, without connecting."""


class _Instance(msgspec.Struct, eq=False):
    socket: Path
    driver: DraDriver
    connected: bool = False
    following: asyncio.Task[None] | None = None


class DraDrivers:
    """Track DRA drivers; implements `engine.plugins.watcher.PluginHandler`.

    `came(driver)` is called when a driver connects.
    """

    def __init__(
        self,
        connect: Connect,
        slices: SliceRemoval,
        health: HealthReports,
        tasks: Tasks,
        came: Callable[[str], None],
        wipe_seconds: float = WIPE_SECONDS,
    ) -> None:
        self._connect = connect
        self._slices = slices
        self._health = health
        self._came = came
        self._wipe_seconds = wipe_seconds
        self._instances: dict[str, list[_Instance]] = {}
        self._streams: dict[str, int] = {}
        self._following = tasks.passing("dra-driver")
        self._wiping = tasks.passing("dra-slices")
        self._wipes: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    def start(self) -> None:
        """Delete the slices that earlier drivers left; drivers that register publish theirs again."""
        self._wiping.start(self._wipe(""), "of all drivers")

    async def stop(self) -> None:
        """Close all connections; drivers keep what they have prepared, and reports hold until they time
        out."""
        self._stopping = True
        await self._wiping.stop()
        await self._following.stop()
        for instances in self._instances.values():
            for instance in instances:
                instance.driver.close()
        self._instances.clear()

    def names(self) -> list[str]:
        return sorted(self._instances)

    def is_connected(self, name: str) -> bool:
        return any(instance.connected for instance in self._instances.get(name, ()))

    def get(self, name: str) -> DraDriver:
        """Return the newest connected instance, else the newest. Raises `Unavailable` if there is none."""
        instances = self._instances.get(name, ())
        if not instances:
            raise Unavailable(f"DRA driver {name} is not registered")
        connected = [instance for instance in instances if instance.connected]
        # During a rolling update two instances of a driver are registered; the newer one is to be called.
        return (connected or instances)[-1].driver

    # Registration

    def check(self, name: str, socket: Path, versions: Sequence[str]) -> None:
        if _NAME.fullmatch(name) is None:
            raise InvalidInput(
                f"DRA driver plugin at endpoint {socket}: expected a driver's name, got {name[:64]!r}"
            )
        try:
            _service(versions)
        except InvalidInput as error:
            whose = f"invalid supported gRPC versions of DRA driver plugin {name} at endpoint {socket}"
            raise InvalidInput(f"{whose}: {error.message}") from None

    async def register(self, name: str, socket: Path, versions: Sequence[str]) -> None:
        instances = self._instances.setdefault(name, [])
        if any(instance.socket == socket for instance in instances):
            raise Refused(f"endpoint {socket} already registered for DRA driver plugin {name}")
        instance = _Instance(socket, self._connect(name, socket, _service(versions)))
        instances.append(instance)
        instance.following = self._following.start(self._follow(name, instance), f"{name} at {socket}")
        self._connections_changed(name)

    async def deregister(self, name: str, socket: Path) -> None:
        instances = self._instances.get(name, [])
        for instance in [instance for instance in instances if instance.socket == socket]:
            instances.remove(instance)
            if instance.following is not None:
                instance.following.cancel()
                await asyncio.wait({instance.following})
            instance.driver.close()
        if not instances:
            self._instances.pop(name, None)
        self._connections_changed(name)

    # Connections

    async def _follow(self, name: str, instance: _Instance) -> None:
        """Keep a connection to an instance until it is deregistered, and receive its health reports."""
        while True:
            await instance.driver.reach()
            instance.connected = True
            log.info("driver %s connected at %s", name, instance.socket)
            self._connections_changed(name)
            self._came(name)
            health = asyncio.create_task(self._listen(name, instance))
            try:
                await instance.driver.lost()
            finally:
                health.cancel()
                await asyncio.wait({health})
                instance.connected = False
            log.warning("driver %s: lost the connection to %s", name, instance.socket)
            self._connections_changed(name)

    async def _listen(self, name: str, instance: _Instance) -> None:
        reported = ""
        while True:
            self._streams[name] = self._streams.get(name, 0) + 1
            try:
                async for devices in instance.driver.health():
                    reported = ""
                    self._health.listed(name, devices)
            except NoHealth:
                return
            except (DraDriverFailed, ValueError) as error:
                if str(error) != reported:
                    reported = str(error)
                    log.warning("driver %s: the health of its devices cannot be read: %s", name, error)
            finally:
                # Health is unknown only once no instance of the driver reports it any longer.
                self._streams[name] -= 1
                if not self._streams[name]:
                    del self._streams[name]
                    if not self._stopping:
                        self._health.ended(name)
            await asyncio.sleep(HEALTH_RETRY_SECONDS)

    # Slices

    def _connections_changed(self, name: str) -> None:
        """Schedule the deletion of the driver's slices, or cancel it."""
        pending = self._wipes.get(name)
        if self.is_connected(name):
            if pending is not None:
                pending.cancel()
                del self._wipes[name]
        elif pending is None:
            self._wipes[name] = self._wiping.start(self._wipe_later(name), name)

    async def _wipe_later(self, name: str) -> None:
        await asyncio.sleep(self._wipe_seconds)
        log.warning("driver %s did not reconnect: deleting its ResourceSlices of this node", name)
        try:
            await self._wipe(name)
        finally:
            if self._wipes.get(name) is asyncio.current_task():
                del self._wipes[name]

    async def _wipe(self, driver: str) -> None:
        """Delete the slices, with retries until it succeeds: nothing else would delete them."""
        pauses, reported = iter(WIPE_RETRIES), ""
        while True:
            try:
                await self._slices.delete(driver)
            except KubengineError as error:
                if str(error) != reported:
                    reported = str(error)
                    log.warning("ResourceSlices %s: cannot be deleted: %s", driver or "of all drivers", error)
            else:
                return
            await asyncio.sleep(next(pauses))


def _service(versions: Sequence[str]) -> str:
    """Return the first service in a driver's list that this agent supports. Raises `InvalidInput`."""
    if not versions:
        raise InvalidInput("empty list of supported gRPC services (aka supported versions)")
    for version in versions:
        if version in SERVICES:
            return version
    theirs, ours = (" ".join(f'"{each}"' for each in some) for some in (versions, SERVICES))
    text = f"none of services supported by the plugin ([{theirs}]) are supported by the kubelet ([{ours}])"
    raise InvalidInput(text)
