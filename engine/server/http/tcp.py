"""Taking a TCP port."""

from __future__ import annotations

import ipaddress
import socket

from engine.api.errors import InvalidInput, Refused

BACKLOG = 128


def bind_tcp(address: str, port: int, field: str) -> socket.socket:
    """Return a listening socket. Raises `InvalidInput` or `Refused`, naming `field`.

    Its connections inherit TCP_NODELAY: with Nagle's algorithm the second of two small writes would wait
    40 ms for the client's delayed acknowledgement.
    """
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError:
        raise InvalidInput(
            f"expected an IP address, got {address!r}", subject=f"address of {field}"
        ) from None
    bound = socket.socket(family)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.bind((address, port))
        bound.listen(BACKLOG)  # claims the port now: with SO_REUSEADDR a bind alone does not
    except (OSError, OverflowError) as error:
        bound.close()
        reason = error.strerror if isinstance(error, OSError) else "not a port number"
        code = error.errno if isinstance(error, OSError) else None
        raise Refused(reason or str(error), subject=f"{field} {address}:{port}", errno=code) from None
    bound.setblocking(False)
    return bound
