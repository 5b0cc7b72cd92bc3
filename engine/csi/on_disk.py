"""What volumes of drivers are on disk, be they file systems or devices: what `Mounting` asks of both.

What a driver has put into a directory is looked at beneath it and through no link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from engine.api.errors import Refused
from engine.csi.driver_calls import DriverCapabilities
from engine.csi.volume import CsiVolume
from engine.csi.volume_data import VolumeData
from engine.host.safe_open import make_directories, opened

_DIRECTORY_MODE: Final = 0o750


@dataclass(frozen=True, slots=True)
class Published:
    """One pod's volume: `target` is where its driver has put it, the directory `data` says whose it is."""

    target: Path
    data: Path
    block: bool

    @property
    def name(self) -> str:
        return self.target.parent.name


@dataclass(frozen=True, slots=True)
class Staged:
    """A volume as all pods of this node have it: `path` is the driver's, the directory `data` says whose."""

    driver: str
    handle: str
    path: Path
    data: Path
    block: bool


class OnDisk(Protocol):
    """Volumes of one kind under a node's directory. All but `staged` and `of_pod` block; they raise
    `Refused` or `OSError`."""

    def staged(self, name: str, data: VolumeData) -> Staged:
        """Of the persistent volume `name`."""

    def of_pod(self, uid: str, name: str) -> Published:
        """The volume `name` of one pod."""

    def mark(self, uid: str, volume: CsiVolume, data: VolumeData) -> None:
        """Says that a pod is to have the volume, and whose it is."""

    def prepare(self, staged: Staged) -> None:
        """Makes what a driver is given to stage into, and says whose it is."""

    def check(self, target: Path, volume: CsiVolume, able: DriverCapabilities) -> None:
        """That the driver has published what was asked for; what remains to be done to it is done."""

    def published(self, uid: str) -> list[Published]: ...

    def all_staged(self, driver: str | None = None) -> list[Staged]: ...

    def users(self, staged: Staged) -> set[str]:
        """The pods, by their uids, that have the volume or are to have it."""

    def clear_published(self, published: Published) -> None:
        """Takes away what its driver has let go of. Nothing is removed that a driver left in a directory."""

    def clear_staged(self, staged: Staged) -> None: ...


def make(root: Path, directory: Path) -> None:
    with opened(root) as top:
        os.close(make_directories(top, str(directory.relative_to(root)), _DIRECTORY_MODE))


def listed(directory: Path) -> list[Path]:
    """Nothing where there is no directory, by now."""
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def clearing(path: Path) -> Iterator[None]:
    """What is gone already is well; all else that goes wrong is raised as `Refused`."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        text = f"cannot be taken away: {error.strerror}"
        raise Refused(text, subject=str(path), errno=error.errno) from error
