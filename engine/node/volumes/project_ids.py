"""Which project of the file system's quotas an emptyDir belongs to, one for each.

A volume's project stands beside its file `ready`, where no container comes; it goes with the pod's directory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.cri.paths import EMPTY_DIR, project_record, volume_path
from engine.host import project_quota
from engine.metrics import Registry

NONE: Final = "none"
USER_NAMESPACES: Final = "user-namespaces"
ALL: Final = "all"

FIRST: Final = 1_048_577
"""Where the kubelet begins, too."""
LAST: Final = 2**32 - 2
PROJECT_FILES: Final = (Path("/etc/projects"), Path("/etc/projid"))

log = logging.getLogger("kubengine.volumes")


class ProjectIds:
    """Gives projects to volumes of pods below `pods`, for those whom `whose` allows: pods with a user
    namespace of their own, or all. Raises `InvalidInput` for another word."""

    def __init__(
        self, pods: Path, whose: str, registry: Registry, project_files: Iterable[Path] = PROJECT_FILES
    ) -> None:
        if whose not in (NONE, USER_NAMESPACES, ALL):
            raise InvalidInput(
                f"expected {NONE}, {USER_NAMESPACES} or {ALL}, got {whose!r}",
                subject="eviction.projectQuotas",
            )
        self._pods, self._whose, self._project_files = pods, whose, project_files
        self._next = FIRST
        self._refused: set[int] = set()
        self._given = registry.counter(
            "kubengine_project_quota_volumes_total",
            "emptyDirs that were to be counted by a project quota, by whether the file system can.",
            ["result"],
        )

    def give(self, pod: Pod, directory: Path, record: Path) -> None:
        """Have the kernel count what is in a new volume, where it can. A file system without such quotas is
        said once. Raises `Refused` if the record cannot be written."""
        if self._whose == NONE or (self._whose == USER_NAMESPACES and pod.spec.host_users is not False):
            return
        device = directory.stat().st_dev
        try:
            project = self._free(directory)
            project_quota.assign(directory, project)
        except OSError as error:
            self._given.inc("impossible")
            if device not in self._refused:
                self._refused.add(device)
                log.warning("no project quotas, emptyDirs are counted file by file: %s", error)
            return
        project_quota.keep_project(record, project)
        self._given.inc("given")

    def _free(self, directory: Path) -> int:
        """One that nobody has. Raises `OSError` where the kernel counts none."""
        if self._next == FIRST:
            self._next = next_free(self._taken(), FIRST)
        while project_quota.counted(directory, self._next) != (0, 0):
            self._next += 1
        project, self._next = self._next, self._next + 1
        return project

    def _taken(self) -> set[int]:
        """Of volumes that are there, and of those whom the host's owner names."""
        records = self._pods.glob(str(project_record(volume_path(Path("*"), EMPTY_DIR, "*"))))
        given = {project for path in records if (project := project_quota.kept_project(path)) is not None}
        words = [word for path in self._project_files for word in _text(path).replace(":", " ").split()]
        return given | {int(word) for word in words if word.isdecimal()}


def next_free(taken: set[int], first: int) -> int:
    """The first number after all that are taken from `first` on."""
    return max((number for number in taken if first <= number < LAST), default=first - 1) + 1


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
