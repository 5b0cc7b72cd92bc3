"""Defines the three families of errors, each with the gRPC status that a peer would see.

`InvalidInput`   the caller's mistake: a manifest, a flag, an argument.
`Refused`        a peer or the kernel said no: a runtime, a plugin, a cgroup file.
`Bug`            our own broken assumption; never expected, always worth a report.
"""

from __future__ import annotations


class KubengineError(Exception):
    """Raised on purpose by the engine; every such error derives from it.

    `subject` is the file, field, path, pod or peer that the error is about; `grpc_status` is the canonical
    status name for a gRPC response.
    """

    grpc_status = "UNKNOWN"

    def __init__(self, message: str, *, subject: str = "") -> None:
        self.subject = subject
        self.message = message
        super().__init__(f"{subject}: {message}" if subject else message)


class InvalidInput(KubengineError):
    """Raised for a mistake of the caller. The message says what was expected, and the subject where."""

    grpc_status = "INVALID_ARGUMENT"


class Refused(KubengineError):
    """Raised if a peer or the kernel refuses.

    `errno` is set if the kernel returned one, `status_text` if a container runtime refused a call: its gRPC
    status as a kubelet prints it (`rpc error: code = Unknown desc = ...`).
    """

    grpc_status = "FAILED_PRECONDITION"

    def __init__(
        self, message: str, *, subject: str = "", errno: int | None = None, status_text: str = ""
    ) -> None:
        self.errno = errno
        self.status_text = status_text
        super().__init__(message, subject=subject)


class Unavailable(Refused):
    """Raised if a peer does not answer now but may later: an unreachable socket, an expired deadline."""

    grpc_status = "UNAVAILABLE"


class NotFound(Refused):
    """Raised if an object that is requested by name does not exist."""

    grpc_status = "NOT_FOUND"


class Bug(KubengineError):
    """Raised if an invariant of our own does not hold."""

    grpc_status = "INTERNAL"
