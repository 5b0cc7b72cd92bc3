"""What keeps a pod's volumes from being made, in the words of its event."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.api.errors import KubengineError, Refused


class VolumeRefused(Refused):
    """A volume that cannot be made, or not yet; the message is the event's."""


@contextmanager
def refusing(volume: str) -> Iterator[None]:
    """What goes wrong with a volume is raised as `VolumeRefused` naming it."""
    try:
        yield
    except VolumeRefused:
        raise
    except (KubengineError, OSError) as error:
        text = f'MountVolume.SetUp failed for volume "{volume}" : {_words(error)}'
        raise VolumeRefused(text, errno=getattr(error, "errno", None)) from error


def _words(error: KubengineError | OSError) -> str:
    if isinstance(error, KubengineError):
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
