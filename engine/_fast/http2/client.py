"""The client's side of HTTP/2 over one connection, without I/O; it has no twin."""

from engine._fast.http2._client_c import (
    BROKEN,
    DATA,
    END,
    GOAWAY,
    HEAD,
    RESET,
    SETTINGS,
    ClientConnection,
    encode,
)

__all__ = ["BROKEN", "DATA", "END", "GOAWAY", "HEAD", "RESET", "SETTINGS", "ClientConnection", "encode"]
