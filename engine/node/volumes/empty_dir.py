"""Creates emptyDir volumes once in a pod's life: a directory on disk, in memory, or of huge pages.

The kubelet's file `ready` in the pod's `plugins` directory marks a created volume. Modes and owners belong
to the pod from then on.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from engine.api.errors import InvalidInput
from engine.api.pod import EmptyDirVolume, Pod
from engine.api.quantity import ZERO, Quantity
from engine.api.resources import MEMORY, pod_limits
from engine.cgroups.formulas.values import limits_declared
from engine.cri.paths import EMPTY_DIR, project_record, volume_path
from engine.host.mounts import is_mount, mount_filesystem
from engine.host.safe_open import make_directories, opened, same_file
from engine.node.volumes.project_ids import ProjectIds

_MEMORY_MEDIUM = "Memory"
_HUGE_PAGES_MEDIUM = "HugePages"
_HUGE_PAGES = "hugepages-"
_GROUP_WRITES = 0o2770


def set_up(
    pod_directory: Path,
    name: str,
    volume: EmptyDirVolume,
    pod: Pod,
    group: int | None,
    allocatable: Mapping[str, Quantity],
    projects: ProjectIds,
) -> Path:
    """Return the volume's directory, owned by the fsGroup if there is one. Raises `OSError` or
    `InvalidInput`.
    """
    path = volume_path(pod_directory, EMPTY_DIR, name)
    ready = pod_directory / "plugins" / EMPTY_DIR / name / "ready"
    if volume.medium not in ("", _MEMORY_MEDIUM) and not _is_huge_pages(volume.medium):
        raise InvalidInput(f'unknown storage medium "{volume.medium}"')
    mounted = volume.medium == "" or is_mount(path)
    if ready.exists() and path.is_dir() and mounted:
        return path
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    # mkdir() applies the umask, chmod() does not: containers may run as any user.
    path.chmod(0o777)
    if not mounted:
        _mount(path, volume, pod, allocatable)
    if group is not None:
        with opened(path) as directory:
            os.chown(same_file(directory), -1, group)
            mode = stat.S_IMODE(os.fstat(directory).st_mode) | _GROUP_WRITES
            Path(same_file(directory)).chmod(mode)
    with opened(pod_directory) as top:
        os.close(make_directories(top, str(ready.parent.relative_to(pod_directory)), 0o750))
    if volume.medium == "":
        projects.assign(pod, path, project_record(path))
    # Created last, so that a volume that is incomplete after a crash is set up again.
    ready.touch(mode=0o644)
    return path


def _mount(path: Path, volume: EmptyDirVolume, pod: Pod, allocatable: Mapping[str, Quantity]) -> None:
    if volume.medium != _MEMORY_MEDIUM:
        mount_filesystem("hugetlbfs", path, f"pagesize={_page_size(volume.medium, pod)}")
    else:
        mount_memory(path, memory_size(volume.size_limit, pod, allocatable.get(MEMORY)))


def mount_memory(path: Path, size: int) -> None:
    """Mount a tmpfs, without swap if the kernel supports that. With `size` 0 the kernel's default applies."""
    options = [f"size={size}"] if size else []
    try:
        mount_filesystem("tmpfs", path, ",".join([*options, "noswap"]))
    except OSError as error:
        if error.errno != errno.EINVAL:  # kernels before 6.4 do not know `noswap`
            raise
        mount_filesystem("tmpfs", path, ",".join(options))


def memory_size(limit: Quantity | None, pod: Pod, allocatable: Quantity | None) -> int:
    """Return the size of a `Memory` volume: the least of its limit, the pod's memory limit and allocatable.

    Returns 0 if none is known: the kernel's default is half of the memory.
    """
    bounds = [allocatable, limit]
    if limits_declared(pod)[1]:
        bounds.append(pod_limits(pod).get(MEMORY))
    return min((bound.value for bound in bounds if bound is not None and bound > ZERO), default=0)


def _is_huge_pages(medium: str) -> bool:
    return medium == _HUGE_PAGES_MEDIUM or medium.startswith(f"{_HUGE_PAGES_MEDIUM}-")


def _page_size(medium: str, pod: Pod) -> str:
    """Return the page size that the medium names, or that of the pod's requests."""
    of_pod = pod.spec.resources.requests if pod.spec.resources is not None else None
    requested = {
        Quantity.parse(name.removeprefix(_HUGE_PAGES))
        for requests in (of_pod or {}, *(container.requests for container in pod.all_containers))
        for name in requests
        if name.startswith(_HUGE_PAGES)
    }
    if medium != _HUGE_PAGES_MEDIUM:
        wanted = Quantity.parse(medium.removeprefix(f"{_HUGE_PAGES_MEDIUM}-"))
        requested &= {wanted}
    if not requested:
        raise InvalidInput(f"medium {medium}: no container requests such huge pages")
    if len(requested) > 1:
        raise InvalidInput(f"medium {medium}: containers request huge pages of several sizes")
    return str(requested.pop().value)
