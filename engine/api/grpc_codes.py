"""Names gRPC status codes by number, as the kubelet's gRPC library does."""

from __future__ import annotations

NAMES = (
    "OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists",
    "PermissionDenied", "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented",
    "Internal", "Unavailable", "DataLoss", "Unauthenticated",
)  # fmt: skip
(
    OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS,
    PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED, OUT_OF_RANGE, UNIMPLEMENTED,
    INTERNAL, UNAVAILABLE, DATA_LOSS, UNAUTHENTICATED,
) = range(len(NAMES))  # fmt: skip


def rpc_error(code: int, details: str) -> str:
    """Word a failed call."""
    name = NAMES[code] if 0 <= code < len(NAMES) else f"Code({code})"
    return f"rpc error: code = {name} desc = {details}"
