"""Manages the mount points and records of drivers' file system volumes; `engine.csi.paths` names them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from engine.api.errors import Refused
from engine.csi import paths, volume_data
from engine.csi.driver_calls import DriverCapabilities
from engine.csi.on_disk import Published, Staged, clearing, listed, make
from engine.csi.volume import CsiVolume
from engine.csi.volume_data import VolumeData
from engine.host.mounts import clear_mount
from engine.host.safe_open import open_beneath, opened_parent
from engine.host.shared_trees import share_tree

_READABLE: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK


class FileSystems:
    """Implement `engine.csi.on_disk.OnDisk` under the node's directory `root`; `node` is its name."""

    def __init__(self, root: Path, node: str) -> None:
        self._root = root
        self._node = node

    def staged(self, name: str, data: VolumeData) -> Staged:
        directory = paths.staged(self._root, data.driver, data.handle)
        path = directory / paths.GLOBAL_MOUNT
        return Staged(data.driver, data.handle, path, directory, block=False)

    def of_pod(self, uid: str, name: str) -> Published:
        directory = paths.published(self._root, uid, name)
        return Published(directory / paths.MOUNT, directory, block=False)

    def mark(self, uid: str, volume: CsiVolume, data: VolumeData) -> None:
        directory = paths.published(self._root, uid, volume.name)
        make(self._root, directory)
        if volume_data.read(directory) != data:
            volume_data.write_published(directory, volume.name, data, volume.mode, self._node)

    def prepare(self, staged: Staged, label: str) -> None:
        make(self._root, staged.path)
        volume_data.write_staged(staged.data, VolumeData(staged.driver, staged.handle, label=label))

    def label(self, staged: Staged) -> str:
        data = volume_data.read(staged.data)
        return data.label if data is not None else ""

    def check(self, target: Path, volume: CsiVolume, capabilities: DriverCapabilities) -> None:
        """Check that the target is a directory, and set the fsGroup's ownership if the node must."""
        with opened_parent(target, self._root) as (parent, name):
            try:
                top = open_beneath(parent, name, _READABLE)
            except OSError as error:
                text = f"the driver did not create a directory there: {error.strerror}"
                raise Refused(text, subject=str(target), errno=error.errno) from error
            try:
                if volume.belongs_to_group and volume.group is not None and not capabilities.gives_to_group:
                    share_tree(top, volume.group, volume.group_change_policy)
            except OSError as error:
                text = f"applyFSGroup failed for vol {volume.handle}: {error.strerror}"
                raise Refused(text, errno=error.errno) from error
            finally:
                os.close(top)

    def published(self, uid: str) -> list[Published]:
        return [self.of_pod(uid, each.name) for each in listed(paths.pods_volumes(self._root, uid))]

    def all_staged(self, driver: str | None = None) -> list[Staged]:
        top = paths.all_staged(self._root)
        drivers = listed(top) if driver is None else [top / driver]
        found = (volume_data.read(volume) for of_driver in drivers for volume in listed(of_driver))
        return [self.staged("", data) for data in found if data is not None]

    def users(self, staged: Staged) -> set[str]:
        return {
            pod.name
            for pod in listed(self._root / "pods")
            for published in self.published(pod.name)
            if (data := volume_data.read(published.data)) is not None
            and (data.driver, data.handle) == (staged.driver, staged.handle)
        }

    def clear_published(self, published: Published) -> None:
        self._clear(published.target)

    def clear_staged(self, staged: Staged) -> None:
        self._clear(staged.path)

    def _clear(self, mount: Path) -> None:
        with clearing(mount), opened_parent(mount, self._root) as (parent, name):
            clear_mount(parent, name)
            with suppress(FileNotFoundError):
                os.unlink(paths.DATA, dir_fd=parent)
            mount.parent.rmdir()
