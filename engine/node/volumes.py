"""A pod's volumes on disk: made before its containers, taken away after its sandboxes.

`<root>/pods/<uid>/volumes/<plugin>/<name>` as a kubelet lays them out; hostPath needs nothing there.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from engine.api.errors import InvalidInput, Refused
from engine.api.pod import Container, DownwardAPIVolume, HostPathVolume, Pod, Volume, VolumeMount
from engine.api.quantity import Quantity
from engine.host.files import replace_file
from engine.node.environment import expand, field_value, resource_value
from engine.node.hostname import PodHostname
from engine.node.hosts import hosts_text

DEFAULT_FILE_MODE = 0o644
_EMPTY_DIR = "kubernetes.io~empty-dir"
_DOWNWARD = "kubernetes.io~downward-api"
_PROJECTED = "kubernetes.io~projected"


class PodVolumes:
    """The volumes of one node's pods, under the node's root directory."""

    def __init__(self, root: Path) -> None:
        self._pods = root / "pods"

    def pod_directory(self, uid: str) -> Path:
        return self._pods / uid

    def known_uids(self) -> set[str]:
        """Pods that have something on disk."""
        return {path.name for path in self._pods.iterdir()} if self._pods.is_dir() else set()

    def set_up(self, pod: Pod, *, host_ip: str, allocatable: Mapping[str, Quantity]) -> dict[str, Path]:
        """Makes every volume but images, which are the runtime's, again where it exists; name → host path.

        Raises `InvalidInput` or `Refused` naming the volume.
        """
        directory = self.pod_directory(pod.uid)
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        paths = {}
        for volume in pod.spec.volumes or []:
            if volume.image is not None:
                continue
            try:
                paths[volume.name] = self._set_up(pod, volume, host_ip, allocatable)
            except OSError as error:
                text = f"volume {volume.name}: {error.strerror or error}"
                raise Refused(text, subject=error.filename or pod.full_name, errno=error.errno) from error
        return paths

    def _set_up(self, pod: Pod, volume: Volume, host_ip: str, allocatable: Mapping[str, Quantity]) -> Path:
        base = self.pod_directory(pod.uid) / "volumes"
        if volume.host_path is not None:
            _check_host_path(volume.host_path, volume.name)
            return Path(volume.host_path.path)
        if volume.empty_dir is not None:
            path = base / _EMPTY_DIR / volume.name
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o777)
            if volume.empty_dir.medium == "Memory" and not path.is_mount():
                _mount_tmpfs(path, volume.empty_dir.size_limit)
            _own(path, pod)
            return path
        if volume.downward_api is not None:
            path = base / _DOWNWARD / volume.name
            _write_files(path, _downward(pod, volume.downward_api, host_ip, allocatable), pod)
            return path
        if volume.projected is not None:
            path = base / _PROJECTED / volume.name
            files: dict[str, tuple[str, int]] = {}
            for source in volume.projected.sources or []:
                if source.downward_api is not None:
                    mode = volume.projected.default_mode
                    files |= _downward(pod, source.downward_api, host_ip, allocatable, mode)
            _write_files(path, files, pod)
            return path
        raise InvalidInput(f"volume {volume.name} has no source that this node knows", subject=pod.full_name)

    def tear_down(self, uid: str) -> None:
        """Unmounts and removes all that a pod has on disk. Raises `Refused` naming the path."""
        directory = self.pod_directory(uid)
        for path in sorted(mounts_below(directory), reverse=True):
            result = subprocess.run(
                ["umount", "--no-mtab", str(path)], capture_output=True, text=True, timeout=30, check=False
            )
            if result.returncode != 0:
                raise Refused(f"cannot unmount: {result.stderr.strip()}", subject=str(path))
        try:
            shutil.rmtree(directory)
        except FileNotFoundError:
            return
        except OSError as error:
            raise Refused(
                f"cannot remove: {error.strerror}", subject=error.filename or str(directory)
            ) from error


def mounts_below(directory: Path) -> list[Path]:
    """Mount points at or below a directory, from /proc/self/mountinfo."""
    prefix = str(directory)
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="surrogateescape") as lines:
        points = [line.split(" ", 5)[4].replace("\\040", " ") for line in lines]
    return [Path(point) for point in points if point == prefix or point.startswith(f"{prefix}/")]


def mount_path(mount: VolumeMount, volume: Path, variables: Mapping[str, str], uid: str) -> Path:
    """The host path behind a volume mount, sub-path included and kept inside the volume."""
    sub_path = expand(mount.sub_path_expr, variables) if mount.sub_path_expr else mount.sub_path
    if not sub_path:
        return volume
    path = volume / sub_path
    inside = os.path.realpath(path)
    if not (inside + "/").startswith(os.path.realpath(volume) + "/") or ".." in sub_path.split("/"):
        raise InvalidInput(f"subPath {sub_path!r} leads out of volume {mount.name}", subject=uid)
    if not path.exists():
        path.mkdir(mode=0o750, parents=True)
        shutil.copymode(volume, path)
    return path


def termination_message_file(pod_directory: Path, container: Container, attempt: int) -> Path:
    """A fresh, world-writable file for the container's last words."""
    directory = pod_directory / "containers" / container.name
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    path = directory / str(attempt)
    path.unlink(missing_ok=True)
    path.touch(mode=0o666)
    path.chmod(0o666)
    return path


def hosts_file(pod_directory: Path, pod: Pod, ips: tuple[str, ...], hostname: PodHostname) -> Path:
    """/etc/hosts of a pod."""
    node_hosts = Path("/etc/hosts").read_text() if pod.spec.host_network else ""
    path = pod_directory / "etc-hosts"
    replace_file(path, hosts_text(pod, ips, hostname, node_hosts), mode=0o644)
    return path


def _check_host_path(volume: HostPathVolume, name: str) -> None:
    """Makes or checks the path as its `type` asks."""
    path = Path(volume.path)
    kind = volume.type
    if kind == "DirectoryOrCreate":
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    elif kind == "FileOrCreate" and not path.exists():
        path.touch(mode=0o644)
    checks = {
        "Directory": stat.S_ISDIR,
        "DirectoryOrCreate": stat.S_ISDIR,
        "File": stat.S_ISREG,
        "FileOrCreate": stat.S_ISREG,
        "Socket": stat.S_ISSOCK,
        "CharDevice": stat.S_ISCHR,
        "BlockDevice": stat.S_ISBLK,
    }
    check = checks.get(kind)
    if check is not None and not (path.exists() and check(path.stat().st_mode)):
        raise Refused(f"hostPath type check failed: it is not a {kind}", subject=f"{name}: {path}")


def _mount_tmpfs(path: Path, size: Quantity | None) -> None:
    options = f"size={size.value}" if size is not None and size else "size=50%"
    command = ["mount", "--no-mtab", "-t", "tmpfs", "-o", f"{options},mode=0777", "tmpfs", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if result.returncode != 0:
        raise Refused(f"cannot mount a tmpfs: {result.stderr.strip()}", subject=str(path))


def _own(path: Path, pod: Pod) -> None:
    """fsGroup: the volume belongs to the group, which new files inherit."""
    group = pod.spec.security_context.fs_group if pod.spec.security_context is not None else None
    if group is not None:
        os.chown(path, -1, group)
        path.chmod(0o2777)


def _downward(
    pod: Pod,
    volume: DownwardAPIVolume,
    host_ip: str,
    allocatable: Mapping[str, Quantity],
    default_mode: int | None = None,
) -> dict[str, tuple[str, int]]:
    files = {}
    mode = volume.default_mode if volume.default_mode is not None else default_mode
    for item in volume.items or []:
        if item.field_ref is not None:
            text = field_value(pod, item.field_ref.field_path, host_ip=host_ip)
        elif item.resource_field_ref is not None:
            text = resource_value(pod, item.resource_field_ref, None, allocatable)
        else:
            raise InvalidInput(
                f"downwardAPI item {item.path}: expected fieldRef or resourceFieldRef", subject=pod.full_name
            )
        chosen = item.mode if item.mode is not None else mode
        files[item.path] = (text, chosen if chosen is not None else DEFAULT_FILE_MODE)
    return files


def _write_files(directory: Path, files: Mapping[str, tuple[str, int]], pod: Pod) -> None:
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, (text, mode) in files.items():
        if name.startswith("/") or ".." in name.split("/"):
            raise InvalidInput(f"path {name!r} leads out of the volume", subject=pod.full_name)
        path = directory / name
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(path, text, mode=mode)
    _own(directory, pod)
