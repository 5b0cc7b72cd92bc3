"""Defines the errors that keep a pod's volumes from being set up, in the words of their events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from engine.api.errors import KubengineError, Refused

SET_UP: Final = "MountVolume.SetUp failed"
SET_UP_DEVICE: Final = "MapVolume.SetUpDevice failed"
TAKEN: Final = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"


class VolumeRefused(Refused):
    """Raised if a volume cannot be set up now; message and `reason` are those of the event."""

    def __init__(self, message: str, *, reason: str = "FailedMount", errno: int | None = None) -> None:
        self.reason = reason
        super().__init__(message, errno=errno)


class UnprocessedVolume(VolumeRefused):
    """Raised if a volume's spec cannot be turned into something to mount."""

    def __init__(self, volume: str, why: str) -> None:
        named = f"[{volume}]"
        text = f"unmounted volumes={named}, unattached volumes=[], failed to process volumes={named}"
        super().__init__(f"Unable to attach or mount volumes: {text}: {why}")


class AttachLimitExceeded(VolumeRefused):
    """Raised if the node can attach no more volumes of a driver: the pod is rejected."""

    def __init__(self, volume: str, why: str) -> None:
        text = (
            "Node has reached its volume attachment limit, rejecting pod. "
            f"unmounted volumes=[{volume}], unattached volumes=[{volume}], "
            f"failed to process volumes=[]: {why}"
        )
        super().__init__(text, reason="VolumeAttachmentLimitExceeded")


class ExpansionFailed(Refused):
    """Raised if a volume was not expanded.

    `final`: no operation is in progress; `infeasible`: the volume cannot have that size; `in_use`: pods use
    the volume, which makes it impossible; `unsupported`: the driver cannot expand volumes on a node.
    """

    def __init__(
        self,
        message: str,
        *,
        final: bool = True,
        infeasible: bool = False,
        in_use: bool = False,
        unsupported: bool = False,
    ) -> None:
        self.final, self.infeasible = final, infeasible
        self.in_use, self.unsupported = in_use, unsupported
        super().__init__(message)


@contextmanager
def refusing(volume: str, operation: str = SET_UP) -> Iterator[None]:
    """Convert failures in the block to `VolumeRefused`, naming the volume and the operation."""
    try:
        yield
    # An inner `refusing` has already named the volume and the operation.
    except VolumeRefused:
        raise
    except (KubengineError, OSError) as error:
        reason = "FailedMapVolume" if operation.startswith("MapVolume") else "FailedMount"
        text = f'{operation} for volume "{volume}" : {_words(error)}'
        raise VolumeRefused(text, reason=reason, errno=getattr(error, "errno", None)) from error


def _words(error: KubengineError | OSError) -> str:
    if isinstance(error, KubengineError):
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
