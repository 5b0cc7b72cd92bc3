"""Define a runtime's errors, each with the gRPC status that the CRI's users expect."""

from __future__ import annotations

from engine.api.errors import InvalidInput, Refused


class NoSuchObject(InvalidInput):
    """Report that there is no such sandbox, container or image."""

    grpc_status = "NOT_FOUND"


class Exists(InvalidInput):
    """Report that another sandbox or container has the name (metadata)."""

    grpc_status = "ALREADY_EXISTS"


class WrongState(Refused):
    """Report that the object exists, but its state does not allow the call."""

    grpc_status = "FAILED_PRECONDITION"


class TimedOut(Refused):
    """Report that a command ran longer than its caller allowed."""

    grpc_status = "DEADLINE_EXCEEDED"


class Unsupported(Refused):
    """Report a part of the CRI that this runtime does not implement, or that this machine or user
    cannot do.
    """

    grpc_status = "UNIMPLEMENTED"


class Exhausted(Refused):
    """Report that too many are in use at once; a later call may succeed."""

    grpc_status = "RESOURCE_EXHAUSTED"
