"""Read images from the runtime, and the pod-resources API of the kubelet, over their unix sockets.

It calls only methods that list or return a status, which change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from engine.api.errors import KubengineError, Unavailable
from engine.api.pod import Pod
from engine.cri.client import RuntimeClient
from engine.devices.pod_resources import SOCKET_NAME
from engine.images.filesystem import read_filesystem_in_time, runtime_filesystems
from engine.images.listed import ImageReader, images_used
from engine.plugins.channel import PluginChannel
from engine.shadow.kinds.observation import FileSystem, SeenImages, SeenResources
from engine.transport.grpc_channel import CallFailed
from engine.wire import podresources_v1_pb2 as v1

DIRECTORY: Final = "pod-resources"
TIMEOUT: Final = 5.0
_SERVICE: Final = "/v1.PodResourcesLister/"


class RuntimeImages:
    """Read the images of a runtime repeatedly. An image that did not change stays the same object."""

    def __init__(self, runtime: RuntimeClient) -> None:
        self._runtime = runtime
        self._reader = ImageReader()
        self._mountpoint: Path | None = None

    async def read(self, pods: Iterable[Pod], filesystem: FileSystem) -> SeenImages:
        """Return the current images, the keys of those in use, and the image file system. Raise the error of
        the runtime.

        `filesystem` is what the kubelet measured. Without its available bytes, the machine is measured
        instead.
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
        """Return the image file system as the machine shows it; an unknown one if it cannot be read."""
        try:
            if self._mountpoint is None:
                self._mountpoint = (await runtime_filesystems(self._runtime)).images
            found = await read_filesystem_in_time(self._mountpoint)
        except (KubengineError, OSError):
            return FileSystem()
        return FileSystem(found.capacity, found.available, found.inodes, found.inodes_free)


class PodResourcesReader:
    """Hold one connection to the pod-resources socket below the root directory of a kubelet."""

    def __init__(self, root: Path) -> None:
        self._path = root / DIRECTORY / SOCKET_NAME
        self._channel: PluginChannel | None = None

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def read(self) -> SeenResources:
        """Return the answers of List and GetAllocatableResources. Raise `Unavailable`."""
        if self._channel is None:
            self._channel = PluginChannel(self._path)
        call = self._channel.call
        try:
            listed = await call(
                f"{_SERVICE}List", v1.ListPodResourcesRequest(), v1.ListPodResourcesResponse, TIMEOUT
            )
            allocatable = await call(
                f"{_SERVICE}GetAllocatableResources", v1.AllocatableResourcesRequest(),
                v1.AllocatableResourcesResponse, TIMEOUT,
            )  # fmt: skip
        except CallFailed as error:
            raise Unavailable(f"does not answer: {error.details}", subject=str(self._path)) from None
        pods = {f"{pod.namespace}/{pod.name}": pod for pod in listed.pod_resources}
        return SeenResources(pods, allocatable)
