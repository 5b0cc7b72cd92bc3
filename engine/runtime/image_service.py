"""Implement `runtime.v1.ImageService` over any image store, with a coroutine per call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from engine.api.errors import InvalidInput
from engine.runtime.objects.backend import Images
from engine.runtime.objects.records import chunks
from engine.wire import cri_v1_pb2 as cri


class ImageService:
    def __init__(self, images: Images) -> None:
        self._images = images

    async def list_images(self, request: cri.ListImagesRequest) -> cri.ListImagesResponse:
        return cri.ListImagesResponse(images=self._select(request.filter))

    async def stream_images(
        self, request: cri.StreamImagesRequest
    ) -> AsyncIterator[cri.StreamImagesResponse]:
        for chunk in chunks(self._select(request.filter)):
            yield cri.StreamImagesResponse(images=chunk)

    async def image_status(self, request: cri.ImageStatusRequest) -> cri.ImageStatusResponse:
        image = self._images.resolve(request.image.image)
        if image is None:
            return cri.ImageStatusResponse()
        info = self._images.info(image.id) if request.verbose else {}
        return cri.ImageStatusResponse(image=image, info=info)

    async def pull_image(self, request: cri.PullImageRequest) -> cri.PullImageResponse:
        image = await self._images.pull(_reference(request.image))
        return cri.PullImageResponse(image_ref=image.id)

    async def remove_image(self, request: cri.RemoveImageRequest) -> cri.RemoveImageResponse:
        await self._images.remove(_reference(request.image))
        return cri.RemoveImageResponse()

    async def image_fs_info(self, _request: cri.ImageFsInfoRequest) -> cri.ImageFsInfoResponse:
        mountpoint, used, inodes = await asyncio.to_thread(self._images.usage)
        usage = cri.FilesystemUsage(
            timestamp=time.time_ns(),
            fs_id=cri.FilesystemIdentifier(mountpoint=mountpoint),
            used_bytes=cri.UInt64Value(value=used),
            inodes_used=cri.UInt64Value(value=inodes),
        )
        return cri.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])

    def _select(self, filter: cri.ImageFilter) -> Sequence[cri.Image]:
        if not filter.image.image:
            return self._images.list()
        image = self._images.resolve(filter.image.image)
        return [] if image is None else [image]


def _reference(image: cri.ImageSpec) -> str:
    """Return the image reference. Raise InvalidInput if there is none."""
    if not image.image:
        raise InvalidInput("expected an image", subject="image.image")
    return image.image
