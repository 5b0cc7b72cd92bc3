"""Talks to logind over the system bus: the inhibitor delay, a lock that delays shutdowns, and signals.

Source: `org.freedesktop.login1(5)`, systemd's inhibitor locks. Calls block for at most 10 s each.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from jeepney import (  # type: ignore[import-untyped]
    DBusAddress,
    DBusErrorResponse,
    HeaderFields,
    MatchRule,
    Message,
    Properties,
    message_bus,
    new_method_call,
)
from jeepney.bus import get_bus  # type: ignore[import-untyped]
from jeepney.io.blocking import DBusConnection, prep_socket  # type: ignore[import-untyped]
from jeepney.wrappers import unwrap_msg  # type: ignore[import-untyped]

from engine.api.errors import Refused, Unavailable
from engine.host.files import replace_file

SERVICE: Final = "org.freedesktop.login1"
MANAGER: Final = DBusAddress("/org/freedesktop/login1", SERVICE, "org.freedesktop.login1.Manager")
SYSTEMD: Final = DBusAddress(
    "/org/freedesktop/systemd1", "org.freedesktop.systemd1", "org.freedesktop.systemd1.Manager"
)
UNIT: Final = "systemd-logind.service"
SIGHUP: Final = 1
CALL_SECONDS: Final = 10.0
DROP_IN: Final = "99-kubelet.conf"
SHUTDOWN: Final = "PrepareForShutdown"
OWNER: Final = "NameOwnerChanged"
MOST_MESSAGES: Final = 1024
"""More messages at once are a flood: the connection is closed and opened again."""
_INHIBIT: Final = ("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")


class _Connection(DBusConnection):  # type: ignore[misc]
    """Connect to a bus, with a deadline for every call, including the initial Hello."""

    def send_and_get_reply(self, message: Message, *, timeout: float | None = None) -> Message:
        return super().send_and_get_reply(message, timeout=CALL_SECONDS if timeout is None else timeout)


def _connect(address: str) -> _Connection:
    sock = prep_socket(get_bus(address), True, timeout=CALL_SECONDS)
    try:
        return _Connection(sock, enable_fds=True)
    except BaseException:
        sock.close()
        raise


class Logind:
    """Call logind over one connection. Every method raises `Refused` or `Unavailable`, naming the bus."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._signals: deque[Message] = deque()
        try:
            self._connection = _connect(address)
        except (OSError, ValueError, KeyError) as error:
            raise Unavailable(f"the system bus does not answer: {error}", subject=address) from error
        try:
            self._follow()
        except BaseException:
            self.close()
            raise

    def _follow(self) -> None:
        """Subscribe to logind's signals, and to a change of the owner of logind's name, which means a
        restart.

        Any process can send signals on the bus, so only those of the current owner count.
        """
        owner = MatchRule(
            type="signal",
            sender=message_bus.bus_name,
            interface=message_bus.interface,
            member=OWNER,
            path=message_bus.object_path,
        )
        owner.add_arg_condition(0, SERVICE)
        self._connection.filter(owner, queue=self._signals)
        self._call(message_bus.AddMatch(owner))
        # The match is in place before the owner is asked for: a restart in between shows as a change of
        # owner.
        self._call(message_bus.AddMatch(_shutdown_of(SERVICE)))
        (present,) = self._call(message_bus.GetNameOwner(SERVICE))
        self._connection.filter(_shutdown_of(present), queue=self._signals)

    def inhibit_delay(self) -> float:
        """Return how many seconds logind waits for locks (`InhibitDelayMaxSec`)."""
        ((kind, value),) = self._call(Properties(MANAGER).get("InhibitDelayMaxUSec"))
        if kind != "t":
            raise Refused(
                f"InhibitDelayMaxUSec has the D-Bus type {kind!r}, expected a uint64", subject=self._address
            )
        return float(value) / 1e6

    def inhibit(self) -> int:
        """Take a lock: return a descriptor that delays a shutdown until it is closed."""
        (descriptor,) = self._call(new_method_call(MANAGER, "Inhibit", "ssss", _INHIBIT))
        return int(descriptor.to_raw_fd())

    def reload(self) -> None:
        """Ask logind to reload its configuration, which happens asynchronously."""
        self._call(new_method_call(SYSTEMD, "KillUnit", "ssi", (UNIT, "all", SIGHUP)))

    def fileno(self) -> int:
        """Return the descriptor that is readable when a signal may have arrived."""
        return int(self._connection.sock.fileno())

    def signals(self) -> list[bool]:
        """Return the signals since the last call, without waiting: true for a shutdown, false for its
        cancellation.

        Raises `Unavailable` if the bus or logind has stopped or restarted.
        """
        try:
            for _ in range(MOST_MESSAGES):
                self._connection.recv_messages(timeout=0)
            raise Unavailable(f"more than {MOST_MESSAGES} messages at once", subject=self._address)
        except TimeoutError:
            pass
        except (OSError, ValueError) as error:
            text = f"the system bus closed the connection: {error}"
            raise Unavailable(text, subject=self._address) from error
        signals = []
        while self._signals:
            message = self._signals.popleft()
            if message.header.fields[HeaderFields.member] == OWNER:
                raise Unavailable("logind restarted", subject=self._address)
            if message.body and isinstance(message.body[0], bool):
                signals.append(message.body[0])
        return signals

    def close(self) -> None:
        with suppress(OSError):
            self._connection.close()

    def _call(self, message: Message) -> tuple[Any, ...]:
        member = message.header.fields[HeaderFields.member]
        try:
            reply = self._connection.send_and_get_reply(message)
            body: tuple[Any, ...] = unwrap_msg(reply)
        except DBusErrorResponse as error:
            text = error.data[0] if error.data else error.name
            raise Refused(f"{member}: {text}", subject=self._address) from error
        except (TimeoutError, OSError, ValueError) as error:
            text = str(error) or f"no answer within {CALL_SECONDS:g} s"
            raise Unavailable(f"{member}: {text}", subject=self._address) from error
        return body


def _shutdown_of(sender: str) -> MatchRule:
    return MatchRule(
        type="signal", sender=sender, interface=MANAGER.interface, member=SHUTDOWN, path=MANAGER.object_path
    )


def write_inhibit_delay(directory: Path, seconds: float) -> None:
    """Write a drop-in of logind.conf with this `InhibitDelayMaxSec`. Raises `Refused` naming the file."""
    path = directory / DROP_IN
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(error.strerror or str(error), subject=str(directory), errno=error.errno) from error
    lines = (
        "# Written by the node agent: how long logind waits for pods to end.",
        "[Login]",
        f"InhibitDelayMaxSec={seconds:.0f}",
    )
    replace_file(path, "\n".join(lines) + "\n", mode=0o644)
