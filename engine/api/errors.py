"""The three families of failure, each with the gRPC status that a peer would see.

`InvalidInput`   the caller's mistake: a manifest, a flag, an argument.
`Refused`        a peer or the kernel said no: a runtime, a plugin, a cgroup file.
`Bug`            our own broken assumption; never expected, always worth a report.
"""

from __future__ import annotations


class KubengineError(Exception):
    """Base of every error that the engine raises on purpose.

    `subject` is the file, field, path, pod or peer that the error is about; `grpc_status` is the
    canonical status name that a gRPC surface answers with.
    """

    grpc_status = "UNKNOWN"

    def __init__(self, message: str, *, subject: str = "") -> None:
        self.subject = subject
        self.message = message
        super().__init__(f"{subject}: {message}" if subject else message)


class InvalidInput(KubengineError):
    """The caller's mistake. The message says what was expected and the subject where it is."""

    grpc_status = "INVALID_ARGUMENT"


class Refused(KubengineError):
    """A peer's or the kernel's refusal.

    `errno` is set where the kernel gave one, `status_text` where a container runtime refused a call: its gRPC
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
    """A peer that may answer later: an unreachable socket, a deadline that passed."""

    grpc_status = "UNAVAILABLE"


class Missing(Refused):
    """A thing that was asked for by its name is not there."""

    grpc_status = "NOT_FOUND"


class Bug(KubengineError):
    """An invariant of our own did not hold."""

    grpc_status = "INTERNAL"
