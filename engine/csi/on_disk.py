"""States the operations of `Mounting` on the content of disks, for file systems and devices.

What a driver has put into a directory is examined below that directory, without following links.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import msgspec

from engine.api.errors import Refused
from engine.csi.driver_calls import DriverCapabilities
from engine.csi.volume import CsiVolume
from engine.csi.volume_data import VolumeData
from engine.host.safe_open import make_directories, opened

_DIRECTORY_MODE: Final = 0o750


class Published(msgspec.Struct, frozen=True):
    """Hold one pod's volume: its driver has put it at `target`, the directory `data` records its owner."""

    target: Path
    data: Path
    block: bool

    @property
    def name(self) -> str:
        return self.target.parent.name


class Staged(msgspec.Struct, frozen=True):
    """Hold a staged volume: `path` is for the driver, the directory `data` records its owner."""

    driver: str
    handle: str
    path: Path
    data: Path
    block: bool


class OnDisk(Protocol):
    """Keep volumes of one kind below a node's directory. All methods but `staged` and `of_pod` block; they
    raise `Refused` or `OSError`.
    """

    def staged(self, name: str, data: VolumeData) -> Staged:
        """Return the staged form of the persistent volume `name`."""

    def of_pod(self, uid: str, name: str) -> Published:
        """Return the volume `name` of one pod."""

    def mark(self, uid: str, volume: CsiVolume, data: VolumeData) -> None:
        """Record that a pod will have the volume, and its owner."""

    def prepare(self, staged: Staged, label: str) -> None:
        """Create the staging directory, and record its owner and the SELinux label of its mount."""

    def label(self, staged: Staged) -> str:
        """Return the SELinux label that the volume is staged with, '' for none."""

    def check(self, target: Path, volume: CsiVolume, able: DriverCapabilities) -> None:
        """Check that the driver has published what was requested, and complete it."""

    def published(self, uid: str) -> list[Published]: ...

    def all_staged(self, driver: str | None = None) -> list[Staged]: ...

    def users(self, staged: Staged) -> set[str]:
        """Return the uids of the pods that have or will have the volume."""

    def clear_published(self, published: Published) -> None:
        """Remove an unpublished volume, but no file that its driver left in a directory."""

    def clear_staged(self, staged: Staged) -> None: ...


def make(root: Path, directory: Path) -> None:
    with opened(root) as top:
        os.close(make_directories(top, str(directory.relative_to(root)), _DIRECTORY_MODE))


def listed(directory: Path) -> list[Path]:
    """Return the entries of a directory; none if it does not exist any longer."""
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def clearing(path: Path) -> Iterator[None]:
    """Ignore files that are gone already, and raise all other failures as `Refused`."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        text = f"cannot be removed: {error.strerror}"
        raise Refused(text, subject=str(path), errno=error.errno) from error
