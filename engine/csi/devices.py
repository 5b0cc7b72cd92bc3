"""Manages the directories and links of drivers' block volumes; `engine.csi.paths` names them.

The link in a pod's directory records that the pod has the volume. It is created before the driver publishes
the volume, and removed after the driver has unpublished it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from engine.api.errors import Refused
from engine.csi import paths, volume_data
from engine.csi.driver_calls import DriverCapabilities
from engine.csi.on_disk import Published, Staged, clearing, listed, make
from engine.csi.volume import CsiVolume
from engine.csi.volume_data import VolumeData
from engine.host.disks.loop_devices import detach_loop_devices
from engine.host.mounts import clear_mount, unmount_top
from engine.host.safe_open import opened_parent
from engine.host.trees import remove_beneath


class Devices:
    """Implement `engine.csi.on_disk.OnDisk` under the node's directory `root`; `node` is its name."""

    def __init__(self, root: Path, node: str) -> None:
        self._root = root
        self._node = node

    def staged(self, name: str, data: VolumeData) -> Staged:
        path, whose = paths.staged_device(self._root, name), paths.device_data(self._root, name)
        return Staged(data.driver, data.handle, path, whose, block=True)

    def of_pod(self, uid: str, name: str) -> Published:
        target = paths.published_devices(self._root, name) / uid
        return Published(target, paths.device_data(self._root, name), block=True)

    def mark(self, uid: str, volume: CsiVolume, data: VolumeData) -> None:
        published = self.of_pod(uid, volume.name)
        make(self._root, published.data)
        if volume_data.read(published.data) != data:
            volume_data.write_device(published.data, volume.name, data, self._node)
        make(self._root, published.target.parent)
        links = paths.pods_devices(self._root, uid)
        make(self._root, links)
        with opened_parent(links / volume.name, self._root) as (parent, name):
            if _led_to(parent, name) != str(published.target):
                remove_beneath(parent, name)
                os.symlink(published.target, name, dir_fd=parent)

    def prepare(self, staged: Staged, label: str) -> None:
        make(self._root, staged.path)

    def label(self, staged: Staged) -> str:
        """Return ''; a device has no files."""
        return ""

    def check(self, target: Path, volume: CsiVolume, capabilities: DriverCapabilities) -> None:
        """Check that the target is a block device, or a link to one."""
        try:
            is_device = stat.S_ISBLK(target.stat().st_mode)
        except OSError as error:
            text = f"the driver did not create a block device there: {error.strerror}"
            raise Refused(text, subject=str(target), errno=error.errno) from error
        if not is_device:
            raise Refused("not a block device", subject=str(target))

    def published(self, uid: str) -> list[Published]:
        return [self.of_pod(uid, link.name) for link in listed(paths.pods_devices(self._root, uid))]

    def all_staged(self, driver: str | None = None) -> list[Staged]:
        names = {path.name for path in listed(paths.all_devices(self._root))} - paths.SHARED
        found = ((name, volume_data.read(paths.device_data(self._root, name))) for name in sorted(names))
        return [
            self.staged(name, data)
            for name, data in found
            if data is not None and driver in (None, data.driver)
        ]

    def users(self, staged: Staged) -> set[str]:
        pods = (pod.name for pod in listed(self._root / "pods"))
        return {uid for uid in pods if (paths.pods_devices(self._root, uid) / staged.path.name).is_symlink()}

    def clear_published(self, published: Published) -> None:
        target = published.target
        kubelets = _kubelets_directory(published.data) / target.name
        with clearing(kubelets):
            detach_loop_devices(kubelets)
        for mount in (kubelets, target):
            with clearing(mount), opened_parent(mount, self._root) as (parent, name):
                clear_mount(parent, name)
        link = paths.pods_devices(self._root, target.name) / published.name
        with clearing(link), opened_parent(link, self._root) as (parent, name):
            os.unlink(name, dir_fd=parent)

    def clear_staged(self, staged: Staged) -> None:
        """Remove everything that the driver left in its directory, as a kubelet does."""
        path, whose = staged.path, staged.data
        with clearing(path), opened_parent(path, self._root) as (parent, name):
            unmount_top(parent, name)
            remove_beneath(parent, name)
        for directory in (paths.published_devices(self._root, path.name), _kubelets_directory(whose)):
            with clearing(directory):
                directory.rmdir()
        with clearing(whose), opened_parent(whose / paths.DATA, self._root) as (parent, name):
            os.unlink(name, dir_fd=parent)
        for directory in (whose, whose.parent):
            with clearing(directory):
                directory.rmdir()


def _kubelets_directory(data: Path) -> Path:
    """Return the directory in which a kubelet mounts the device a second time for each pod, with a loop
    device.
    """
    return data.parent / "dev"


def _led_to(parent: int, name: str) -> str | None:
    """Return the target of a link; None for anything else."""
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL):
            return None
        raise
