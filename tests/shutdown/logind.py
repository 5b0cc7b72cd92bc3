"""Stand in for logind, and for the systemd that reloads it, on a bus of the test's own."""

from __future__ import annotations

import os
import re
import socket
import threading
from pathlib import Path
from typing import Any

from jeepney import (  # type: ignore[import-untyped]
    DBusAddress,
    HeaderFields,
    MessageType,
    message_bus,
    new_error,
    new_method_return,
    new_signal,
)
from jeepney.io.blocking import open_dbus_connection  # type: ignore[import-untyped]

MANAGER = DBusAddress("/org/freedesktop/login1", interface="org.freedesktop.login1.Manager")
NAMES = ("org.freedesktop.login1", "org.freedesktop.systemd1")


class StandInLogind(threading.Thread):
    """Serve as logind until `end`.

    `delay` is InhibitDelayMaxSec, which a reload reads from `drop_ins` unless `ignores_reloads`. `locks`
    holds the arguments of each Inhibit call, and the read end of its pipe.
    """

    def __init__(
        self, bus: str, drop_ins: Path, *, delay: float = 5.0, ignores_reloads: bool = False
    ) -> None:
        super().__init__(daemon=True)
        self.delay = delay
        self.ignores_reloads = ignores_reloads
        self.drop_ins = drop_ins
        self.locks: list[tuple[tuple[str, ...], int]] = []
        self.reloads: list[tuple[Any, ...]] = []
        self._connection = open_dbus_connection(bus, enable_fds=True)
        self._ended = False
        for name in NAMES:
            self._connection.send_and_get_reply(message_bus.RequestName(name))
        self.start()

    def run(self) -> None:
        while True:
            try:
                message = self._connection.receive()
            except (OSError, ValueError):
                return
            if message.header.message_type is MessageType.method_call:
                self._answer(message, message.header.fields[HeaderFields.member])

    def _answer(self, message: Any, member: str) -> None:
        if member == "Get":
            assert message.body == (MANAGER.interface, "InhibitDelayMaxUSec")
            reply = new_method_return(message, "v", (("t", int(self.delay * 1e6)),))
        elif member == "Inhibit":
            reading, writing = os.pipe()
            self.locks.append((message.body, reading))
            self._connection.send(new_method_return(message, "h", (writing,)))
            os.close(writing)
            return
        elif member == "KillUnit":
            self.reloads.append(message.body)
            found = re.search(r"InhibitDelayMaxSec=(\d+)", (self.drop_ins / "99-kubelet.conf").read_text())
            if found and not self.ignores_reloads:
                self.delay = float(found[1])
            reply = new_method_return(message)
        else:
            reply = new_error(message, "org.freedesktop.DBus.Error.UnknownMethod")
        self._connection.send(reply)

    def prepare_for_shutdown(self, begins: bool) -> None:
        self._connection.send(new_signal(MANAGER, "PrepareForShutdown", "b", (begins,)))

    def locks_held(self) -> list[bool]:
        """Return for each inhibitor lock whether the agent still holds it."""
        return [not _closed(reading) for _, reading in self.locks]

    def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._connection.sock.shutdown(socket.SHUT_RDWR)
        self.join(5)
        self._connection.close()
        for _, reading in self.locks:
            os.close(reading)


def _closed(reading: int) -> bool:
    os.set_blocking(reading, False)
    try:
        return os.read(reading, 1) == b""
    except BlockingIOError:
        return False
