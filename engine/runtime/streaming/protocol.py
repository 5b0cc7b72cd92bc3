"""Define the messages of the remote command and port forward protocols, as Kubernetes clients use them.

From the behaviour of k8s.io/client-go and the kubelet's streaming server. Pure: values in, values out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from engine.runtime.objects.records import RuntimeContainer, Sandbox
from engine.transport.stream_protocols import (
    ERROR,
    RESIZE,
    STDERR,
    STDIN,
    STDOUT,
    V1,
    V2,
    V4,
    V5,
    internal_error,
    status,
)

MAX_SIZE_TEXT = 1024


@dataclass(frozen=True, slots=True)
class CommandTicket:
    """Describe an exec, or an attach if there is no `command`, with the streams that the client will open."""

    container: RuntimeContainer
    command: Sequence[str]
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    def expected(self, protocol: str) -> set[int]:
        """Return the channels that the client opens; terminals are resized since v3."""
        wanted = {STDIN: self.stdin, STDOUT: self.stdout, STDERR: self.stderr}
        found = {ERROR, *(channel for channel, there in wanted.items() if there)}
        if self.tty and protocol not in (V1, V2):
            found.add(RESIZE)
        return found


@dataclass(frozen=True, slots=True)
class PortForwardTicket:
    """Describe a port forward. `ports` are fixed beforehand only for WebSockets; with SPDY each stream names
    its own.
    """

    sandbox: Sandbox
    ports: Sequence[int]


Ticket = CommandTicket | PortForwardTicket


def negotiated(wanted: Sequence[str], offered: Sequence[str]) -> str | None:
    """Return the client's first preference among the offered protocols; None if there is none."""
    return next((protocol for protocol in wanted if protocol in offered), None)


def exit_status(code: int, protocol: str) -> bytes:
    """Return the error channel's message at the end of a command; before v4 an empty one means success."""
    if code == 0:
        return status({"status": "Success"}) if protocol in (V4, V5) else b""
    message = f"command terminated with non-zero exit code: {code}"
    if protocol not in (V4, V5):
        return message.encode()
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return status(
        {"status": "Failure", "message": message, "reason": "NonZeroExitCode", "details": {"causes": causes}}
    )


def failure_status(message: str, protocol: str) -> bytes:
    """Return the error channel's message if the command did not run, or its end is unknown."""
    return internal_error(message) if protocol in (V4, V5) else message.encode()


class SizeReader:
    """Parse terminal sizes from the resize channel: JSON objects one after the other."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """Return columns and rows of every complete size; drop invalid ones."""
        self._text += data.decode("utf-8", "replace")
        found: list[tuple[int, int]] = []
        while text := self._text.lstrip():
            try:
                value, end = json.JSONDecoder().raw_decode(text)
            except ValueError:
                self._text = text if len(text) <= MAX_SIZE_TEXT else ""
                return found
            self._text = text[end:]
            size = value if isinstance(value, dict) else {}
            columns, rows = size.get("Width"), size.get("Height")
            if _is_length(columns) and _is_length(rows):
                found.append((columns, rows))
        return found


def _is_length(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 16
