"""Holds an image while a pod that needs it is being started (kubernetes/kubernetes#123631)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

DEFAULT_REGISTRY = "docker.io/"
DEFAULT_NAMESPACE = "library/"


class ImageLeases:
    """Track the holders of images, by the name in the pod's manifest."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._removing: dict[frozenset[str], asyncio.Event] = {}

    @asynccontextmanager
    async def hold(self, image: str) -> AsyncIterator[None]:
        """Hold an image, which is not collected meanwhile; first waits for a removal in progress.

        A check after that sees whether the image is still there.
        """
        name = normalized(image)
        self._held[name] += 1
        try:
            for names, done in list(self._removing.items()):
                if name in names:
                    await done.wait()
            yield
        finally:
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]

    def holds(self, names: Iterable[str]) -> bool:
        return any(name in self._held for name in map(normalized, names))

    @asynccontextmanager
    async def removal(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Enclose the removal of the image with these names."""
        key = frozenset(map(normalized, names))
        done = self._removing[key] = asyncio.Event()
        try:
            yield
        finally:
            self._removing.pop(key, None)
            done.set()


def normalized(name: str) -> str:
    """Return the full image reference: `busybox` → `docker.io/library/busybox:latest`."""
    if name.startswith("sha256:"):
        return name
    first, slash, _rest = name.partition("/")
    if not slash:
        name = DEFAULT_REGISTRY + DEFAULT_NAMESPACE + name
    elif "." not in first and ":" not in first and first != "localhost":
        name = DEFAULT_REGISTRY + name
    if "@" not in name and ":" not in name.rpartition("/")[2]:
        name += ":latest"
    return name
