"""Report from a forked process to the runtime, over a separate connection."""

from __future__ import annotations

import os
import socket
from typing import Any

from engine.runtime.shim import messages

SOCKET = "report.sock"


class Report:
    """Hold a forked process's connection to the runtime."""

    def __init__(self, directory: str, token: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        os.chdir(directory)  # a socket's path is limited to 107 bytes, and a relative one is short
        self._socket.connect(SOCKET)
        os.chdir("/")
        self.send({"token": token})

    def send(self, message: dict[str, Any], content: bytes = b"") -> None:
        self._socket.sendall(messages.pack(message, content))

    def may_go(self) -> bool:
        """Wait for the runtime's permission; return False if the runtime is gone or refuses."""
        try:
            return self._socket.recv(1) == b"g"
        except OSError:
            return False

    def fileno(self) -> int:
        return self._socket.fileno()

    def release(self) -> socket.socket:
        """Return the connection itself, for data other than messages."""
        return self._socket

    def close(self) -> None:
        self._socket.close()
