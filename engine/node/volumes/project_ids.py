"""Assigns a quota project of the file system to each emptyDir.

The project id is stored in a file next to `ready`, which containers cannot reach, and is removed with the
pod's directory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.quantity import decimal
from engine.cri.paths import EMPTY_DIR, project_record, volume_path
from engine.host.disks import project_quota
from engine.metrics import Registry

NONE: Final = "none"
USER_NAMESPACES: Final = "user-namespaces"
ALL: Final = "all"

FIRST: Final = 1_048_577
"""The first id, which is also the kubelet's."""
LAST: Final = 2**32 - 2
PROJECT_FILES: Final = (Path("/etc/projects"), Path("/etc/projid"))

log = logging.getLogger("kubengine.volumes")


class ProjectIds:
    """Assign projects to volumes of pods below `pods`.

    `selection` selects pods with a user namespace of their own, or all pods. Raises `InvalidInput` for other
    values.
    """

    def __init__(
        self, pods: Path, selection: str, registry: Registry, project_files: Iterable[Path] = PROJECT_FILES
    ) -> None:
        if selection not in (NONE, USER_NAMESPACES, ALL):
            raise InvalidInput(
                f"expected {NONE}, {USER_NAMESPACES} or {ALL}, got {selection!r}",
                subject="eviction.projectQuotas",
            )
        self._pods, self._selection, self._project_files = pods, selection, project_files
        self._next = FIRST
        self._refused: set[int] = set()
        self._assigned = registry.counter(
            "kubengine_project_quota_volumes_total",
            "emptyDir volumes that should use a project quota, by whether the file system supports it.",
            ["result"],
        )

    def assign(self, pod: Pod, directory: Path, record: Path) -> None:
        """Assign a project to a new volume, if the file system supports quotas; otherwise log that once.

        Raises `Refused` if the record cannot be written.
        """
        if self._selection == NONE or (
            self._selection == USER_NAMESPACES and pod.spec.host_users is not False
        ):
            return
        device = directory.stat().st_dev
        try:
            project = self._free(directory)
            project_quota.assign(directory, project)
        except OSError as error:
            self._assigned.inc("impossible")
            if device not in self._refused:
                self._refused.add(device)
                log.warning("no project quotas, counting emptyDir volumes file by file: %s", error)
            return
        project_quota.keep_project(record, project)
        self._assigned.inc("given")

    def _free(self, directory: Path) -> int:
        """Return an unused id. Raises `OSError` if the file system has no project quotas."""
        # Read once: reading every record and both files for each volume would slow pod starts down.
        if self._next == FIRST:
            self._next = next_free(self._used_ids(), FIRST)
        # An id that no file names may be in use all the same: it is if the kernel counts usage for it.
        while project_quota.counted(directory, self._next) != (0, 0):
            self._next += 1
        project, self._next = self._next, self._next + 1
        return project

    def _used_ids(self) -> set[int]:
        """Return the ids of existing volumes, and those in /etc/projects and /etc/projid."""
        records = self._pods.glob(str(project_record(volume_path(Path("*"), EMPTY_DIR, "*"))))
        given = {project for path in records if (project := project_quota.kept_project(path)) is not None}
        words = [word for path in self._project_files for word in _text(path).replace(":", " ").split()]
        return given | {number for word in words if (number := decimal(word)) is not None}


def next_free(taken: set[int], first: int) -> int:
    """Return the number after the largest one in `taken` that is at least `first`, or `first`."""
    return max((number for number in taken if first <= number < LAST), default=first - 1) + 1


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
