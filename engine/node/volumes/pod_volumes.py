"""All of a pod's volumes: made before its containers, taken away after its sandboxes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from engine.api.errors import InvalidInput, KubengineError, Refused
from engine.api.pod import Pod, Volume
from engine.api.quantity import Quantity
from engine.cri.paths import DOWNWARD_API, PROJECTED, pods_directory, volume_path
from engine.host.mounts import unmount_below
from engine.host.trees import remove_tree
from engine.node.volumes import agent_written, empty_dir, host_path


class VolumeRefused(Refused):
    """A volume that cannot be made, or not yet; the message is the event's."""


class PodVolumes:
    """The volumes of one node's pods, under the node's root directory."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._pods = pods_directory(root)
        self._clock = clock

    def pod_directory(self, uid: str) -> Path:
        return self._pods / uid

    def known_uids(self) -> set[str]:
        """Pods that have something on disk."""
        return {path.name for path in self._pods.iterdir()} if self._pods.is_dir() else set()

    def set_up(self, pod: Pod, *, host_ip: str, allocatable: Mapping[str, Quantity]) -> dict[str, Path]:
        """Makes what containers mount but images, which are the runtime's, again where it exists;
        name → host path. A volume that no container mounts is left alone, as the kubelet does.

        Raises `VolumeRefused` naming the volume.
        """
        directory = self.pod_directory(pod.uid)
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for name in ("containers", "plugins", "volumes"):
            (directory / name).mkdir(mode=0o750, exist_ok=True)
        mounted = {m.name for container in pod.all_containers for m in container.volume_mounts or []}
        paths = {}
        for volume in pod.spec.volumes or []:
            if volume.image is not None or volume.name not in mounted:
                continue
            try:
                paths[volume.name] = self._set_up(pod, volume, host_ip, allocatable)
            except (KubengineError, OSError) as error:
                text = f'MountVolume.SetUp failed for volume "{volume.name}" : {_words(error)}'
                raise VolumeRefused(text, errno=getattr(error, "errno", None)) from error
        return paths

    def _set_up(self, pod: Pod, volume: Volume, host_ip: str, allocatable: Mapping[str, Quantity]) -> Path:
        directory, group = self.pod_directory(pod.uid), fs_group(pod)
        if volume.host_path is not None:
            return host_path.set_up(volume.host_path)
        if volume.empty_dir is not None:
            return empty_dir.set_up(directory, volume.name, volume.empty_dir, pod, group, allocatable)
        if not agent_written.is_agent_written(volume):
            raise InvalidInput("no source that this node knows")
        files = agent_written.volume_files(pod, volume, host_ip, allocatable)
        plugin = DOWNWARD_API if volume.downward_api is not None else PROJECTED
        path = volume_path(directory, plugin, volume.name)
        agent_written.write(path, volume.name, pod, files, group, self._clock())
        return path

    def tear_down(self, uid: str) -> None:
        """Unmounts and removes all that a pod has on disk. Raises `Refused` naming the path."""
        directory = self.pod_directory(uid)
        for doing, step in (("unmount", unmount_below), ("remove", remove_tree)):
            try:
                step(directory)
            except FileNotFoundError:
                return
            except OSError as error:
                path = str(error.filename or directory)
                raise Refused(f"cannot {doing}: {error.strerror}", subject=path, errno=error.errno) from error


def fs_group(pod: Pod) -> int | None:
    context = pod.spec.security_context
    return context.fs_group if context is not None else None


def _words(error: KubengineError | OSError) -> str:
    if isinstance(error, KubengineError):
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
