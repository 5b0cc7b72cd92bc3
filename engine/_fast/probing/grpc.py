"""Read a probe's answer to a grpc.health.v1 Check, a CRI ExecSync or a GET over HTTP/2.

Only the parts of RFC 9113 and RFC 7541 that such an answer needs are supported; anything out of order is a
protocol error.
"""

from engine._fast.probing._grpc_c import GrpcAnswer

__all__ = [
    "ANSWERED", "CLOSED", "EXEC", "GET", "HEALTH", "HTTP", "MORE", "PROTOCOL", "STATUS", "GrpcAnswer",
]  # fmt: skip

MORE, ANSWERED, STATUS, HTTP, PROTOCOL, CLOSED = range(6)
"""Verdicts. Their details: the serving status, exit code or GET's status; the gRPC status; the HTTP status;
none; the HTTP/2 error code.
"""

HEALTH, EXEC, GET = range(3)
"""The calls whose answers can be read."""
