"""Opens sockets in other network namespaces."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from typing import Final

CLONE_NEWNET: Final = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


def socket_in(namespace: int, family: int) -> socket.socket:
    """Return a non-blocking TCP socket of the namespace with this descriptor. Raises `OSError`.

    A new thread enters the namespace and ends there.
    """
    made: list[socket.socket] = []
    failures: list[OSError] = []

    def make() -> None:
        try:
            if _libc.setns(namespace, CLONE_NEWNET) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            made.append(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
        except OSError as error:
            failures.append(error)

    # A namespace belongs to a thread: setns(2) in the thread of the event loop would move the whole agent. A
    # socket keeps the namespace in which it was created.
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return made[0]
