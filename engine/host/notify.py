"""Reports the state of the process to systemd (sd_notify(3))."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping

from engine.api.errors import InvalidInput

log = logging.getLogger("kubengine.notify")


class ServiceManager:
    """Notify the service manager that `environment` names, if any.

    `watchdog_seconds` is the time it waits for `alive`, None without a watchdog. Raises `InvalidInput`
    naming the variable.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        if address and address[0] not in "/@":
            raise InvalidInput("expected an absolute path or an abstract @name", subject="NOTIFY_SOCKET")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = _watchdog(environment) if address else None

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send("STATUS=" + " ".join(text.split()))

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                # A service manager whose queue is full must not stop the agent.
                sender.setblocking(False)
                sender.connect(self._address)
                sender.send(text.encode())
        except OSError as error:
            log.warning("NOTIFY_SOCKET %r: %s was not sent: %s", self._address, text, error.strerror or error)


def _watchdog(environment: Mapping[str, str]) -> float | None:
    pid, period = environment.get("WATCHDOG_PID", ""), environment.get("WATCHDOG_USEC", "")
    # A child inherits the variables: the watchdog is for the process that WATCHDOG_PID names
    # (sd_watchdog_enabled(3)).
    if not period or (pid and pid != str(os.getpid())):
        return None
    if not (period.isascii() and period.isdigit() and len(period) < 20 and int(period)):
        raise InvalidInput(f"expected microseconds, got {period!r}", subject="WATCHDOG_USEC")
    return int(period) / 1e6


async def beat(manager: ServiceManager, trouble: Callable[[], str]) -> None:
    """Send `alive` twice in each watchdog period while `trouble()` is empty; return at once
    without a watchdog.
    """
    if manager.watchdog_seconds is None:
        return
    sent = ""
    while True:
        found = trouble()
        if not found:
            manager.alive()
        if found != sent:
            manager.status(found or "well")
            sent = found
        # Half the period, as sd_watchdog_enabled(3) recommends.
        await asyncio.sleep(manager.watchdog_seconds / 2)
