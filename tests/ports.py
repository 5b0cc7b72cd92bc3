"""Choose TCP ports for servers whose port is a setting."""

from __future__ import annotations

import os
import random
import socket

# Below the ephemeral ports: the kernel could give one of those to a connection before the server binds it.
_LOWEST, _HIGHEST = 11_000, 32_000
_order = random.Random(os.getpid())
_given: set[int] = set()


def free_port() -> int:
    """Return a port that no process uses, each only once in this process."""
    while True:
        port = _order.randrange(_LOWEST, _HIGHEST)
        if port in _given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
