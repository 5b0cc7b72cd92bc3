"""Decodes images and containers from the runtime's bytes, only what image GC needs."""

from __future__ import annotations

from typing import Final

from engine._fast.messages.message_fields import Picker
from engine.cri.labels import POD_NAME, POD_NAMESPACE, POD_UID
from engine.images.records import SeenImage

_ITEMS: Final = Picker("ListImagesResponse", [""])
_IMAGES: Final = Picker(
    "ListImagesResponse", ["id", "size", "pinned", "spec.runtime_handler", "repo_tags", "repo_digests"]
)
_USED: Final = Picker("ListContainersResponse", ["image_id", "image_ref"])
_USED_BY_HANDLER: Final = Picker("ListContainersResponse", ["image_id", "image_ref", "image.runtime_handler"])

USERS: Final = Picker(
    "ListContainersResponse", ["id", "metadata.name", f"labels[{POD_NAME}]", f"labels[{POD_NAMESPACE}]"]
)
"""Id and name of each container, and its pod's name and namespace."""
CONTAINERS_OF_PODS: Final = Picker("ListContainersResponse", ["id", f"labels[{POD_UID}]"])


class ImageReader:
    """Read lists of images in sequence; an unchanged image is the same object."""

    def __init__(self) -> None:
        self._known: dict[bytes, SeenImage] = {}

    def read(self, message: bytes) -> list[SeenImage]:
        """Return the images of a ListImagesResponse. Raises `ValueError` for malformed bytes."""
        (items,) = _ITEMS.pick(message)
        known = self._known
        new = [item for item in items if item not in known]
        columns = _IMAGES.pick_items(new)
        for item, id, size, pinned, handler, tags, digests in zip(new, *columns, strict=True):
            known[item] = SeenImage(id, size, pinned, handler, tags + digests)
        images = [known[item] for item in items]
        if len(known) > 2 * len(items):
            self._known = dict(zip(items, images, strict=True))
        return images


def images_used(message: bytes) -> list[str]:
    """Return the image of each container in a ListContainersResponse. Raises `ValueError` for
    malformed bytes.
    """
    ids, references = _USED.pick(message)
    return [id or reference for id, reference in zip(ids, references, strict=True)]


def images_used_by_handler(message: bytes) -> list[tuple[str, str]]:
    """Return the same with the runtime handler that the image was pulled for."""
    ids, references, handlers = _USED_BY_HANDLER.pick(message)
    return [
        (id or reference, handler) for id, reference, handler in zip(ids, references, handlers, strict=True)
    ]
