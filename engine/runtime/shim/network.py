"""Set up a pod's network by sending the kernel the messages that the runtime built (`runtime.links`)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

HOST, POD = "host", "pod"
ANSWER_SECONDS = 10
NLMSG_ERROR = 2
_HEADER = struct.Struct("=IHHII")


class Step(NamedTuple):
    """Hold a message to the kernel, its network namespace (HOST or POD), and what it concerns."""

    where: str
    message: bytes
    what: str


class Netlink:
    """Open a route socket of the network namespace in which it is created."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.settimeout(ANSWER_SECONDS)

    def close(self) -> None:
        self._socket.close()

    def request(self, message: bytes, what: str) -> None:
        """Send one message and wait for its acknowledgement. Raise OSError about `what`."""
        self._socket.send(message)
        while True:
            answer = self._socket.recv(65536)
            _, kind, *_ = _HEADER.unpack_from(answer)
            if kind == NLMSG_ERROR:
                number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
                if number:
                    raise OSError(number, os.strerror(number), what)
                return


def set_up(host: Netlink, steps: Iterable[tuple[str, str, str]]) -> None:
    """Run the steps, whose messages are hexadecimal, in a fresh network namespace; `host` was
    opened before.
    """
    pod = Netlink()
    try:
        for where, message, what in steps:
            (host if where == HOST else pod).request(bytes.fromhex(message), what)
    finally:
        pod.close()
        host.close()
