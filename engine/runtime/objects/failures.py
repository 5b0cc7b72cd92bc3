"""What a runtime refuses, each with the gRPC status that the CRI's users expect."""

from __future__ import annotations

from engine.api.errors import InvalidInput, Refused


class Missing(InvalidInput):
    """No such sandbox, container or image."""

    grpc_status = "NOT_FOUND"


class Exists(InvalidInput):
    """The name (metadata) is taken by another sandbox or container."""

    grpc_status = "ALREADY_EXISTS"


class WrongState(Refused):
    """The object is there, but not in a state that allows the call."""

    grpc_status = "FAILED_PRECONDITION"


class TimedOut(Refused):
    """A command ran longer than its caller allowed."""

    grpc_status = "DEADLINE_EXCEEDED"


class Unsupported(Refused):
    """A part of the CRI that this runtime leaves out, or that this machine or user can't do."""

    grpc_status = "UNIMPLEMENTED"


class Exhausted(Refused):
    """Too many at once; later it may work."""

    grpc_status = "RESOURCE_EXHAUSTED"
