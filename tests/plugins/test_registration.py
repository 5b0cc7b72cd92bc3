"""What the plugin watcher keeps of plugins that come and go while it registers them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import Refused
from engine.dra.drivers import DRA_PLUGIN
from engine.host.inotify import IN_Q_OVERFLOW
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.plugins.watcher import PluginWatcher
from engine.testing.dra_driver import SampleDraDriver
from engine.wire import pluginregistration_v1_pb2 as wire
from tests.waiting import eventually


class Plugins:
    """Hold the registered plugins; as for drivers, none can register at an endpoint of another."""

    def __init__(self) -> None:
        self.registered: set[Path] = set()
        self.refused = 0

    def check(self, name: str, socket: Path, versions: Sequence[str]) -> None: ...

    async def register(self, name: str, socket: Path, versions: Sequence[str]) -> None:
        if socket in self.registered:
            self.refused += 1
            raise Refused("already registered")
        self.registered.add(socket)

    async def deregister(self, name: str, socket: Path) -> None:
        self.registered.remove(socket)


class SlowDriver(SampleDraDriver):
    """Confirm a registration only once `confirms` is set."""

    def __init__(self, directory: Path, registry: Path) -> None:
        super().__init__(directory, registry)
        self.confirms = asyncio.Event()

    async def NotifyRegistrationStatus(
        self, request: wire.RegistrationStatus, context: Any
    ) -> wire.RegistrationStatusResponse:
        self.status.append(request)
        await self.confirms.wait()
        return wire.RegistrationStatusResponse()


@pytest.fixture
def plugins() -> Plugins:
    return Plugins()


@pytest.fixture
async def watcher(plugins: Plugins) -> AsyncIterator[PluginWatcher]:
    with tempfile.TemporaryDirectory(prefix="kp-") as short:
        watcher = PluginWatcher(Path(short).resolve() / "r", {DRA_PLUGIN: plugins}, Tasks(Registry()))
        await watcher.start()
        yield watcher
        await watcher.stop()


@pytest.fixture
async def driver(watcher: PluginWatcher) -> AsyncIterator[SlowDriver]:
    """Yield a driver that has not started, in a subdirectory of the watched one."""
    top = watcher._directory
    driver = SlowDriver(top.parent / "d", top / "own")
    yield driver
    await driver.stop()


async def test_a_plugin_that_goes_before_it_confirms_is_forgotten(
    driver: SlowDriver, plugins: Plugins
) -> None:
    await driver.start()
    await eventually(lambda: driver.status)
    assert plugins.registered == {driver.socket}
    driver.registration.unlink()
    await eventually(lambda: not plugins.registered)


async def test_a_plugin_that_restarts_before_it_confirms_registers_again(
    driver: SlowDriver, plugins: Plugins
) -> None:
    await driver.start()
    await eventually(lambda: driver.status)
    await driver.stop()
    driver.confirms.set()
    await driver.start()
    await eventually(lambda: len(driver.status) > 1)
    assert [status.plugin_registered for status in driver.status] == [True, True]
    assert plugins.registered == {driver.socket}
    assert plugins.refused == 0


async def test_a_plugin_is_forgotten_whose_directory_is_moved_away(
    driver: SlowDriver, plugins: Plugins
) -> None:
    driver.confirms.set()
    await driver.start()
    await eventually(lambda: plugins.registered)
    own = driver.registration.parent
    own.rename(own.parent.parent / "elsewhere")
    await eventually(lambda: not plugins.registered)


async def test_a_removal_among_lost_events_is_found(
    watcher: PluginWatcher, driver: SlowDriver, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.confirms.set()
    await driver.start()
    await eventually(lambda: plugins.registered)
    monkeypatch.setattr(watcher, "_examine", lambda path: None)
    driver.registration.unlink()
    await asyncio.sleep(0.1)
    assert plugins.registered == {driver.socket}
    watcher._event(IN_Q_OVERFLOW, Path(), "")
    await eventually(lambda: not plugins.registered)
