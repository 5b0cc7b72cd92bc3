"""Read the images of a runtime, what uses them, and their file system: lists and statuses only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from engine.api.errors import KubengineError
from engine.api.pod import Pod
from engine.cri.client import RuntimeClient
from engine.images.filesystem import read_filesystem_in_time, runtime_filesystems
from engine.images.listed import ImageReader, images_used
from engine.shadow.kinds.observation import FileSystem, SeenImages


class RuntimeImages:
    """Read the images again and again; an image that did not change stays the same object."""

    def __init__(self, runtime: RuntimeClient) -> None:
        self._runtime = runtime
        self._reader = ImageReader()
        self._mountpoint: Path | None = None

    async def read(self, pods: Iterable[Pod], filesystem: FileSystem) -> SeenImages:
        """Return the images as they are now. Raise the runtime's error.

        `filesystem` is as the kubelet measured it; what it does not tell is read from the machine.
        """
        images = await self._runtime.read_images(self._reader.read)
        # After the images: a container that was created in between counts as a user of its image.
        used = await self._runtime.read_containers(images_used)
        mounted = [
            volume.image.reference for pod in pods for volume in pod.spec.volumes or () if volume.image
        ]
        if filesystem.available is None:
            filesystem = await self._measure()
        return SeenImages(images, frozenset((*used, *mounted)), filesystem)

    async def _measure(self) -> FileSystem:
        try:
            if self._mountpoint is None:
                self._mountpoint = (await runtime_filesystems(self._runtime)).images
            found = await read_filesystem_in_time(self._mountpoint)
        except (KubengineError, OSError):
            return FileSystem()
        return FileSystem(found.capacity, found.available, found.inodes, found.inodes_free)
