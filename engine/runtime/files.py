"""Places containers' files: writable layers, and the images that are mounted as volumes.

ROOT/containers/<id>/rootfs        where the root is put together, in the container's own mount namespace
ROOT/containers/<id>/upper, work   its writable layer
ROOT/containers/<id>/image-<n>     the n-th mount, where that is an image, as copied layers
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from engine.api.errors import InvalidInput
from engine.host.trees import remove_tree
from engine.runtime.images.store import ImageStore, StoredImage
from engine.runtime.objects.failures import NoSuchObject
from engine.runtime.objects.records import RuntimeContainer


class Files(NamedTuple):
    """Describe a container's files: `rootfs` is what a shim needs, `volumes` host paths by container path,
    `layers` what it uses.
    """

    rootfs: dict[str, Any]
    volumes: dict[str, str]
    layers: list[str]


class _Volume(NamedTuple):
    place: Path
    below: str
    image: StoredImage

    @property
    def source(self) -> Path:
        return self.place / self.below


class ContainerFiles:
    """Create containers' files; `overlay` stacks layers with overlayfs, otherwise they are copied."""

    def __init__(self, root: Path, images: ImageStore, *, overlay: bool) -> None:
        self._places = root / "containers"
        self._images = images
        self._overlay = overlay

    def open(self) -> None:
        self._places.mkdir(mode=0o750, exist_ok=True)

    def upper(self, container: RuntimeContainer) -> Path:
        """Return the container's writable layer."""
        return self._places / container.id / "upper"

    async def make(self, container: RuntimeContainer, image: StoredImage) -> Files:
        """Create directories and image volumes. Raise NoSuchObject or InvalidInput about an image volume."""
        place = self._places / container.id
        volumes = dict(self._volumes(container, place))
        try:
            for name in ("rootfs", "upper", "work"):
                (place / name).mkdir(mode=0o755, parents=True)
            for volume in volumes.values():
                await asyncio.to_thread(self._fill, volume)
        except BaseException:
            await asyncio.to_thread(_remove, place)
            raise
        rootfs = {
            "overlay": self._overlay,
            "path": str(place / "rootfs"),
            "upper": str(place / "upper"),
            "work": str(place / "work"),
            "layers_directory": str(self._images.layers),
            "layers": ["/"] if image.is_host else image.layers,
        }
        layers = [*image.layers, *(layer for volume in volumes.values() for layer in volume.image.layers)]
        return Files(rootfs, {path: str(volume.source) for path, volume in volumes.items()}, layers)

    async def remove(self, container: RuntimeContainer) -> None:
        await asyncio.to_thread(_remove, self._places / container.id)

    async def keep(self, identifiers: Collection[str]) -> None:
        """Remove the files of all containers but these."""
        for place in self._places.iterdir():
            if place.name not in identifiers:
                await asyncio.to_thread(_remove, place)

    def _volumes(self, container: RuntimeContainer, place: Path) -> list[tuple[str, _Volume]]:
        found = []
        for number, mount in enumerate(container.config.mounts):
            if mount.image.image:
                image = self._images.get(mount.image.image)
                if image is None or image.is_host:
                    raise NoSuchObject(
                        "not in the image store; pull it first", subject=f"image {mount.image.image!r}"
                    )
                below = mount.image_sub_path.strip("/")
                if ".." in below.split("/"):
                    raise InvalidInput("leads out of the image", subject=mount.image_sub_path)
                found.append((mount.container_path, _Volume(place / f"image-{number}", below, image)))
        return found

    def _fill(self, volume: _Volume) -> None:
        from engine.runtime.shim.flatten import flatten

        flatten([self._images.layers / layer for layer in volume.image.layers], volume.place)
        if not volume.source.exists():
            raise NoSuchObject("no such path in the image", subject=volume.below)


def _remove(place: Path) -> None:
    """Remove as much of it as possible; the next start retries what is left."""
    with contextlib.suppress(OSError):
        remove_tree(place)
