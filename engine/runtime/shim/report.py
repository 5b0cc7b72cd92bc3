"""What a forked process says to the runtime, over a connection of its own."""

from __future__ import annotations

import os
import socket
from typing import Any

from engine.runtime.shim import messages

SOCKET = "report.sock"


class Report:
    """A forked process's connection to the runtime."""

    def __init__(self, directory: str, token: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        os.chdir(directory)  # a socket's path is limited to 107 bytes, a relative one is short
        self._socket.connect(SOCKET)
        os.chdir("/")
        self.send({"token": token})

    def send(self, message: dict[str, Any], content: bytes = b"") -> None:
        self._socket.sendall(messages.pack(message, content))

    def may_go(self) -> bool:
        """Waits for the runtime's go; False where it went away or said no."""
        try:
            return self._socket.recv(1) == b"g"
        except OSError:
            return False

    def fileno(self) -> int:
        return self._socket.fileno()

    def release(self) -> socket.socket:
        """The connection itself, for something else than messages."""
        return self._socket

    def close(self) -> None:
        self._socket.close()
