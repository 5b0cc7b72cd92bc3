"""Creates a pod's volumes before its containers, and removes them after its sandboxes."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from engine.api.errors import InvalidInput, Refused
from engine.api.objects.storage import LocalVolume
from engine.api.pod import HostPathVolume, Pod, Volume
from engine.api.quantity import Quantity
from engine.api.resources import MEMORY
from engine.cri.paths import CONFIG_MAP, pods_directory, volume_path
from engine.host.mounts import is_mount, unmount_below, unmount_entries
from engine.host.selinux import SELinux
from engine.host.threads import to_own_thread
from engine.host.trees import remove_tree
from engine.metrics import Registry
from engine.node.volumes import agent_written, block_device, empty_dir, local, sub_path
from engine.node.volumes.agent_written import is_agent_written
from engine.node.volumes.claims import (
    BoundVolume,
    in_tree_source,
    is_csi_volume,
    mount_options,
    volume_name,
)
from engine.node.volumes.contents import Contents
from engine.node.volumes.project_ids import NONE, ProjectIds
from engine.node.volumes.refusals import SET_UP, SET_UP_DEVICE, refusing
from engine.node.volumes.volume_counts import Durations, mounting, plugin_name

VolumeSource = Contents | BoundVolume
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_KINDS = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "FileOrCreate": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


class PodVolumes:
    """Set up and remove the volumes of one node's pods.

    `project_quotas` selects the emptyDirs with a project quota (`ProjectIds`), `selinux` is the machine's
    SELinux state.
    """

    def __init__(
        self,
        root: Path,
        clock: Callable[[], float] = time.time,
        *,
        project_quotas: str = NONE,
        registry: Registry | None = None,
        selinux: SELinux | None = None,
    ) -> None:
        self._pods = pods_directory(root)
        self._clock = clock
        self.selinux = selinux or SELinux()
        self._projects = ProjectIds(self._pods, project_quotas, registry or Registry())

    def pod_directory(self, uid: str) -> Path:
        return self._pods / uid

    def known_uids(self) -> set[str]:
        """Return the uids of pods that have something on disk."""
        return {path.name for path in self._pods.iterdir()} if self._pods.is_dir() else set()

    def set_up(
        self,
        pod: Pod,
        sources: Mapping[str, VolumeSource],
        *,
        allocatable: Mapping[str, Quantity],
        durations: Durations | None = None,
    ) -> dict[str, Path]:
        """Create the volumes that containers use, except CSI, image, NFS, iSCSI and Fibre Channel volumes;
        existing ones stay.

        Returns name → host path. `sources` has, by volume name, the contents of configMap, secret,
        downwardAPI and projected volumes, and the persistent volumes of claims. The duration of each setup is
        added to `durations`. Raises `VolumeRefused` naming the volume.
        """
        directory = self.pod_directory(pod.uid)
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for name in ("containers", "plugins", "volumes"):
            # The kubelet's layout: other programs, such as backup and monitoring agents, expect these three.
            (directory / name).mkdir(mode=0o750, exist_ok=True)
        paths = {}
        recorded = durations or Durations()
        for volume in used_volumes(pod):
            bound = sources.get(volume.name)
            if is_csi_volume(volume, bound) or in_tree_source(volume, bound) is not None:
                continue
            block = isinstance(bound, BoundVolume) and bound.block
            failure = refusing(volume_name(volume, bound), SET_UP_DEVICE if block else SET_UP)
            with failure, recorded.of(plugin_name(volume, bound), mounting(bound)):
                paths[volume.name] = self._set_up(pod, volume, bound, allocatable)
        return paths

    def write(
        self, pod: Pod, volume: Volume, contents: Contents, allocatable: Mapping[str, Quantity]
    ) -> Path:
        """Write the current content of a volume. Raises `KubengineError` or `OSError`."""
        plugin = agent_written.plugin_of(volume)
        assert plugin is not None
        path = volume_path(self.pod_directory(pod.uid), plugin, volume.name)
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        path.mkdir(mode=0o755, exist_ok=True)
        # Secrets, projected and downward API volumes are in memory only, as with the kubelet.
        if plugin != CONFIG_MAP and not is_mount(path):
            empty_dir.mount_memory(path, empty_dir.memory_size(None, pod, allocatable.get(MEMORY)))
        agent_written.write(path, volume.name, pod, contents.files, fs_group(pod), self._clock())
        return path

    def _set_up(
        self,
        pod: Pod,
        volume: Volume,
        source: VolumeSource | None,
        allocatable: Mapping[str, Quantity],
    ) -> Path:
        directory, group = self.pod_directory(pod.uid), fs_group(pod)
        if volume.host_path is not None:
            return _check_host_path(volume.host_path)
        if volume.empty_dir is not None:
            return empty_dir.set_up(
                directory, volume.name, volume.empty_dir, pod, group, allocatable, self._projects
            )
        if isinstance(source, Contents):
            return self.write(pod, volume, source, allocatable)
        if source is None:
            raise Refused("unknown volume source")
        if isinstance(source.source, HostPathVolume):
            return _check_host_path(source.source)
        if not isinstance(source.source, LocalVolume):
            raise Refused("its CSI driver must create it")
        if source.block:
            return block_device.set_up(directory, source.name, source.source)
        context = pod.spec.security_context
        policy = context.fs_group_change_policy if context is not None else None
        assert source.directory is not None
        options = mount_options(volume, source)
        return local.set_up(directory, source.name, source.directory, group, policy, options)

    def tear_down(self, uid: str) -> None:
        """Unmount and remove everything that a pod has on disk. Raises `Refused` naming the path."""
        self._remove_devices(uid)
        _unmount_volumes(self.pod_directory(uid))
        _remove(self.pod_directory(uid))

    def remove_sub_paths(self, uid: str) -> None:
        """Unmount and remove the subPath mounts, which keep the volumes busy. Raises `Refused` naming the
        path.
        """
        _remove(self.pod_directory(uid) / sub_path.DIRECTORY)

    def remove_volumes(self, uid: str) -> None:
        """Unmount and remove the volumes of a pod that no longer runs; data mounted from elsewhere stays.

        Raises `Refused` naming the path.
        """
        self._remove_devices(uid)
        _unmount_volumes(self.pod_directory(uid))
        _remove(self.pod_directory(uid) / "volumes")

    def _remove_devices(self, uid: str) -> None:
        directory = self.pod_directory(uid)
        with _refused("release block devices", directory):
            block_device.remove_kubelet_mounts(self._pods, uid)
        _remove(directory / block_device.DIRECTORY)


def _unmount_volumes(directory: Path) -> None:
    """Unmount the volumes of a pod, such as the tmpfs of each token and secret, where its directory shows
    them.
    """
    volumes = directory / "volumes"
    with _refused("unmount the volumes", volumes):
        for plugin in os.listdir(volumes) if volumes.exists() else ():  # noqa: PTH208
            unmount_entries(volumes / plugin)


def _remove(directory: Path) -> None:
    """Remove a tree. The mount table is searched only on failure: few pods have other mounts than their
    volumes, and the table lists the mounts of the whole host, which are thousands on a dense node.
    """
    with suppress(OSError):
        remove_tree(directory)
        return
    for doing, step in (("unmount", unmount_below), ("remove", remove_tree)):
        with _refused(doing, directory), suppress(FileNotFoundError):
            step(directory)


@contextmanager
def _refused(doing: str, directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path = str(error.filename or directory)
        raise Refused(f"cannot {doing}: {error.strerror}", subject=path, errno=error.errno) from error


def used_volumes(pod: Pod) -> list[Volume]:
    """Return the volumes that a container mounts or has as a device, except images; others are ignored, as by
    the kubelet.
    """
    if not pod.spec.volumes:
        return []
    mounted = {m.name for container in pod.every_container for m in container.volume_mounts or []}
    devices = {d.name for container in pod.every_container for d in container.volume_devices or []}
    return [v for v in pod.spec.volumes if v.name in mounted | devices and v.image is None]


def has_own_volumes_only(pod: Pod) -> bool:
    """Tell whether the agent creates every volume of the pod, so that none depends on a file server."""
    return all(v.empty_dir is not None or is_agent_written(v) for v in used_volumes(pod))


async def in_thread(
    pod: Pod | None, work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Run `work` on a pod's volumes in a thread. The thread is a new one, not from the shared pool, unless
    the pod is known and the agent creates all its volumes: a dead file server or a large volume may block it
    for long.
    """
    run = asyncio.to_thread if pod is not None and has_own_volumes_only(pod) else to_own_thread
    return await run(work, *args, **kwargs)


def fs_group(pod: Pod) -> int | None:
    context = pod.spec.security_context
    return context.fs_group if context is not None else None


def _check_host_path(volume: HostPathVolume) -> Path:
    """Create or check the path according to `type`. A relative path starts at `/`, the kubelet's working
    directory as a service.

    Raises `Refused`, `InvalidInput` or `OSError`.
    """
    path = Path("/", volume.path)
    if not volume.path or ".." in path.parts or "\0" in volume.path:
        raise InvalidInput(f"invalid HostPath {volume.path!r}: expected a path without '..'")
    if not volume.type:
        return path
    if volume.type not in _KINDS:
        raise InvalidInput(f"{volume.type} is an invalid volume type")
    is_kind, words = _KINDS[volume.type]
    found = _mode(path)
    if found is None and volume.type == "DirectoryOrCreate":
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = _mode(path)
    elif found is None and volume.type == "FileOrCreate":
        # O_NONBLOCK: another process may have created a FIFO there, and open() would block on it.
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC, 0o644))
        found = _mode(path)
    if found is None or not is_kind(found):
        raise Refused(f"hostPath type check failed: {path} is not {words}")
    return path


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
