"""The service manager hears what the process is, over the sockets that systemd uses."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput
from engine.host.notify import ServiceManager, beat


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        if request.param == "path":
            address = str(tmp_path / "notify")
            listener.bind(address)
        else:
            address = f"@kubengine-test-{secrets.token_hex(8)}"
            listener.bind("\0" + address[1:])
        listener.settimeout(30)
        yield address, listener


def test_systemd_is_notified_of_start_life_and_end(manager: tuple[str, socket.socket]) -> None:
    address, listener = manager
    service = ServiceManager({"NOTIFY_SOCKET": address})
    service.ready()
    service.alive()
    service.status("two\nlines")
    service.stopping()
    heard = [listener.recv(4096) for _ in range(4)]
    assert heard == [b"READY=1", b"WATCHDOG=1", b"STATUS=two lines", b"STOPPING=1"]


def test_without_a_service_manager_nothing_is_sent() -> None:
    service = ServiceManager({"WATCHDOG_USEC": "1000000"})
    service.ready()
    assert service.watchdog_seconds is None


def test_a_vanished_service_manager_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    assert "READY=1 was not sent" in caplog.text


@pytest.mark.parametrize(
    ("pid", "seconds"), [("", 2.5), (str(os.getpid()), 2.5), ("1", None)], ids=["any", "ours", "another's"]
)
def test_the_watchdog_is_for_the_process_that_it_names(pid: str, seconds: float | None) -> None:
    environment = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "2500000", "WATCHDOG_PID": pid}
    assert ServiceManager(environment).watchdog_seconds == seconds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NOTIFY_SOCKET", "relative"),
        ("WATCHDOG_USEC", "soon"),
        ("WATCHDOG_USEC", "0"),
        ("WATCHDOG_USEC", "-5"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        ServiceManager({"NOTIFY_SOCKET": "/run/notify", name: value})


async def test_the_watchdog_is_notified_while_all_is_well_and_problems_are_named(
    manager: tuple[str, socket.socket],
) -> None:
    address, listener = manager
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    troubles = ["", "eviction: stuck", "eviction: stuck", ""]
    service = ServiceManager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000"})
    beating = asyncio.create_task(beat(service, lambda: troubles.pop(0) if troubles else ""))
    heard = [await asyncio.wait_for(loop.sock_recv(listener, 4096), 30) for _ in range(5)]
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    assert heard == [b"WATCHDOG=1", b"STATUS=eviction: stuck", b"WATCHDOG=1", b"STATUS=well", b"WATCHDOG=1"]


async def test_without_a_watchdog_nothing_beats() -> None:
    await beat(ServiceManager({"NOTIFY_SOCKET": "/run/notify"}), lambda: "")
