"""Slices over D-Bus, where systemd is init and owns the cgroup tree.

systemd keeps its own idea of every slice's values and writes them again when it reloads, so each value
goes to it as a property as well as into the file. Source: `org.freedesktop.systemd1(5)`,
`systemd.resource-control(5)`.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from jeepney import (  # type: ignore[import-untyped]
    DBusAddress,
    DBusErrorResponse,
    HeaderFields,
    MatchRule,
    Message,
    message_bus,
    new_method_call,
    new_method_return,
)
from jeepney.io.blocking import DBusConnection, Proxy, open_dbus_connection  # type: ignore[import-untyped]

from engine.api.errors import Refused, Unavailable
from engine.cgroups.formulas.file_names import CPU_IDLE, IO_WEIGHT
from engine.cgroups.formulas.names import CgroupName, systemd_unit

RUNNING = "/run/systemd/system"
SYSTEM_BUS = "unix:path=/run/dbus/system_bus_socket"
PRIVATE = "/run/systemd/private"
"""systemd's own socket, for root."""

TIMEOUT = 10.0
INFINITY = 2**64 - 1
IDLE_WEIGHT = 0
MANAGER = DBusAddress(
    "/org/freedesktop/systemd1", "org.freedesktop.systemd1", "org.freedesktop.systemd1.Manager"
)
_NUMBERS = {
    "cpu.shares": "CPUShares",
    "cpu.weight": "CPUWeight",
    "memory.limit_in_bytes": "MemoryLimit",
    "memory.max": "MemoryMax",
    "memory.high": "MemoryHigh",
    "memory.low": "MemoryLow",
    "memory.min": "MemoryMin",
    "memory.swap.max": "MemorySwapMax",
    "pids.max": "TasksMax",
}
_EXISTS = "org.freedesktop.systemd1.UnitExists"
_NO_SUCH_UNIT = "org.freedesktop.systemd1.NoSuchUnit"

Property = tuple[str, tuple[str, Any]]


def unit_properties(files: Mapping[str, str]) -> list[Property]:
    """Return the unit properties that correspond to these cgroup files."""
    properties: list[Property] = []
    for file, text in files.items():
        if file in _NUMBERS:
            number = int(text) if text.isdigit() else INFINITY
            properties.append((_NUMBERS[file], ("t", number)))
    if IO_WEIGHT in files:
        properties.append(("IOWeight", ("t", int(files[IO_WEIGHT].removeprefix("default ")))))
    if files.get(CPU_IDLE) == "1":
        # systemd writes cpu.idle for a weight of 0, which it spells "idle".
        properties.append(("CPUWeight", ("t", IDLE_WEIGHT)))
    quota, period = files.get("cpu.cfs_quota_us"), files.get("cpu.cfs_period_us", "100000")
    if "cpu.max" in files:
        quota, _, period = files["cpu.max"].partition(" ")
    if quota is not None:
        # Rounded up, as systemd rounds down when it turns this into a quota again.
        per_second = -(-int(quota) * 1_000_000 // int(period)) if quota.isdigit() else INFINITY
        properties.append(("CPUQuotaPerSecUSec", ("t", per_second)))
        properties.append(("CPUQuotaPeriodUSec", ("t", int(period))))
    return properties


class _Lost(Unavailable):
    """Raised if the connection to the bus is lost, as when the bus restarts."""


class _Peer(DBusConnection):  # type: ignore[misc]
    """Connect to systemd itself, which needs no greeting, and sends every signal unasked."""

    def send_and_get_reply(self, message: Message, *, timeout: float | None = None) -> Message:
        if message.header.fields[HeaderFields.member] == "Hello":
            return new_method_return(message, "s", ("",))
        return super().send_and_get_reply(message, timeout=timeout)


def _authenticated(path: str) -> socket.socket:
    """Connect to systemd's own socket. Raises `OSError`."""
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.settimeout(TIMEOUT)
        connected.connect(path)
        # In one piece, as systemd's own clients do: a call that arrives together with BEGIN is answered only
        # after the next one.
        user = str(os.getuid()).encode().hex()
        connected.sendall(f"\0AUTH EXTERNAL {user}\r\nBEGIN\r\n".encode())
        answer = b""
        while not answer.endswith(b"\r\n"):
            answer += (piece := connected.recv(1024))
            if not piece or not b"OK ".startswith(answer[:3]):
                raise PermissionError(errno.EACCES, "systemd refuses the connection", path)
        connected.settimeout(None)
    except BaseException:
        connected.close()
        raise
    return connected


class SystemdSlices:
    """Manage transient slices of one systemd, over one bus connection; every call has a deadline.

    A lost connection is opened again, and the call made again: each of them may be repeated.
    """

    def __init__(self, address: str, *, timeout: float = TIMEOUT, private: str = PRIVATE) -> None:
        """Connect. Raises `Unavailable` if the bus does not answer."""
        self._address, self._private = address, private
        self._timeout = timeout
        self._removed = MatchRule(
            type="signal",
            interface=MANAGER.interface,
            member="JobRemoved",
            path=MANAGER.object_path,
        )
        self._connection = self._open()
        self._call("Subscribe")

    @classmethod
    def connect(cls, address: str | None = None, *, running: str = RUNNING) -> SystemdSlices:
        """Connect to systemd. Raises `Refused` if systemd is not init, `Unavailable` if its bus does not
        answer.
        """
        if not os.path.isdir(running):  # noqa: PTH112
            raise Refused(
                "cgroupDriver systemd needs systemd as init, which does not run here; "
                "use cgroupDriver: cgroupfs",
                subject=running,
            )
        return cls(address or os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or SYSTEM_BUS)

    def _open(self) -> DBusConnection:
        """Connect to the bus, or to systemd itself where no bus is installed."""
        try:
            connection = open_dbus_connection(self._address, auth_timeout=TIMEOUT)
            Proxy(message_bus, connection, timeout=self._timeout).AddMatch(self._removed)
        except (OSError, ValueError, KeyError) as error:
            with suppress(OSError):
                return _Peer(_authenticated(self._private))
            text = f"the system bus does not answer: {error}"
            raise Unavailable(text, subject=self._address) from error
        return connection

    def _again_if_lost(self, call: Callable[[], None]) -> None:
        try:
            call()
        except _Lost:
            self._connection = self._open()
            self._call("Subscribe")
            call()

    def start(self, name: CgroupName) -> None:
        """Start a transient slice, with accounting on.

        One that runs is fine. systemd makes none where it knows the unit already, by an administrator's
        file or drop-in: that one is started as it is.
        """
        unit, parent = systemd_unit(name)
        properties: list[Property] = [
            ("Description", ("s", f"kubengine slice {unit}")),
            # They include a conflict with shutdown.target (systemd.slice(5)); the agent ends pods itself.
            ("DefaultDependencies", ("b", False)),
            *((f"{kind}Accounting", ("b", True)) for kind in ("CPU", "Memory", "Tasks", "IO")),
        ]
        if parent != "-.slice":
            properties.append(("Wants", ("as", [parent])))
        self._again_if_lost(lambda: self._start(unit, properties))

    def _start(self, unit: str, properties: list[Property]) -> None:
        arguments = (unit, "replace", properties, list[Any]())
        if not self._job(unit, "StartTransientUnit", "ssa(sv)a(sa(sv))", arguments, ignore=_EXISTS):
            self._job(unit, "StartUnit", "ss", (unit, "replace"))

    def set(self, name: CgroupName, files: Mapping[str, str]) -> None:
        """Tell systemd the values that are being written, until the next boot."""
        properties = unit_properties(files)
        if properties:
            unit, _ = systemd_unit(name)
            # True: at runtime only, so that nothing is left in /etc after a reboot.
            arguments = (unit, True, properties)
            self._again_if_lost(lambda: self._set(unit, arguments))

    def _set(self, unit: str, arguments: tuple[Any, ...]) -> None:
        self._call("SetUnitProperties", "sba(sv)", arguments, unit=unit)

    def stop(self, name: CgroupName) -> None:
        """Stop a slice and everything in it; a missing one is fine."""
        unit, _ = systemd_unit(name)
        self._again_if_lost(lambda: self._stop(unit))

    def _stop(self, unit: str) -> None:
        self._job(unit, "StopUnit", "ss", (unit, "replace"), ignore=_NO_SUCH_UNIT)

    def close(self) -> None:
        self._connection.close()

    def _job(
        self, unit: str, method: str, signature: str, arguments: tuple[Any, ...], ignore: str = ""
    ) -> bool:
        """Call a method that starts a job, and wait for the job's end. Return False where systemd refuses
        the call with the error `ignore`."""
        # The filter is there before the call: a short job may end before its reply is read.
        with self._connection.filter(self._removed, bufsize=1024) as ended:
            try:
                (job,) = self._call(method, signature, arguments, unit=unit, ignore=ignore) or (None,)
                while job is not None:
                    message = self._connection.recv_until_filtered(ended, timeout=self._timeout)
                    _, path, _, result = message.body
                    if path == job:
                        if result != "done":
                            raise Refused(f"systemd ended the job as {result!r}", subject=unit)
                        return True
            except TimeoutError:
                raise Unavailable(
                    f"systemd did not finish {method} in {self._timeout:g} s", subject=unit
                ) from None
            except OSError as error:
                raise self._lost(error) from error
        return False

    def _call(
        self,
        method: str,
        signature: str | None = None,
        arguments: tuple[Any, ...] = (),
        *,
        unit: str = "",
        ignore: str = "",
    ) -> tuple[Any, ...] | None:
        message = new_method_call(MANAGER, method, signature, arguments)
        try:
            reply = self._connection.send_and_get_reply(message, timeout=self._timeout)
        except TimeoutError:
            raise Unavailable(
                f"systemd did not answer {method} in {self._timeout:g} s", subject=unit or self._address
            ) from None
        except OSError as error:
            raise self._lost(error) from error
        if reply.header.message_type.name == "error":
            refusal = DBusErrorResponse(reply)
            if refusal.name == ignore:
                return None
            detail = refusal.data[0] if refusal.data else refusal.name
            raise Refused(f"systemd refuses {method}: {detail}", subject=unit or self._address)
        return tuple(reply.body)

    def _lost(self, error: OSError) -> _Lost:
        with suppress(OSError):
            self._connection.close()
        return _Lost(f"the connection to the bus was lost: {error}", subject=self._address)
