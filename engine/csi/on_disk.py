"""Defines the operations of `Mounting` on the node's directories, for file systems and devices.

Files that a driver created in a directory are accessed relative to that directory, without following links.
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
    """Describe one pod's volume: the driver publishes it at `target`, and the directory `data` has its
    record.
    """

    target: Path
    data: Path
    block: bool

    @property
    def name(self) -> str:
        return self.target.parent.name


class Staged(msgspec.Struct, frozen=True):
    """Describe a staged volume: the driver stages it at `path`, and the directory `data` has its record."""

    driver: str
    handle: str
    path: Path
    data: Path
    block: bool


class OnDisk(Protocol):
    """Manage volumes of one kind below a node's directory. All methods but `staged` and `of_pod` block, and
    raise `Refused` or `OSError`.
    """

    def staged(self, name: str, data: VolumeData) -> Staged:
        """Return the staged form of the persistent volume `name`."""

    def of_pod(self, uid: str, name: str) -> Published:
        """Return the volume `name` of one pod."""

    def mark(self, uid: str, volume: CsiVolume, data: VolumeData) -> None:
        """Record that a pod will have the volume, and write the volume's record."""

    def prepare(self, staged: Staged, label: str) -> None:
        """Create the staging directory, and record the volume and the SELinux label of its mount."""

    def label(self, staged: Staged) -> str:
        """Return the SELinux label that the volume is staged with, '' for none."""

    def check(self, target: Path, volume: CsiVolume, capabilities: DriverCapabilities) -> None:
        """Check that the driver has published a volume of the right kind, and set its fsGroup if needed."""

    def published(self, uid: str) -> list[Published]: ...

    def all_staged(self, driver: str | None = None) -> list[Staged]: ...

    def users(self, staged: Staged) -> set[str]:
        """Return the uids of the pods that have or will have the volume."""

    def clear_published(self, published: Published) -> None:
        """Remove an unpublished volume's mount point and record, but no file that its driver left there."""

    def clear_staged(self, staged: Staged) -> None: ...


def make(root: Path, directory: Path) -> None:
    with opened(root) as top:
        os.close(make_directories(top, str(directory.relative_to(root)), _DIRECTORY_MODE))


def listed(directory: Path) -> list[Path]:
    """Return the entries of a directory; none if it does not exist."""
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def clearing(path: Path) -> Iterator[None]:
    """Ignore missing files, and raise all other failures as `Refused`."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        text = f"cannot be removed: {error.strerror}"
        raise Refused(text, subject=str(path), errno=error.errno) from error
