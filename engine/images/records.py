"""What image GC remembers of each image: when it was first seen and last used, its size, pinning, names.

The times live in an `ImageTable`, so that the same kernels read an agent's images and a planner's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine._fast.image_order import mark
from engine.tables import NEVER, ImageTable


@dataclass(frozen=True, slots=True)
class SeenImage:
    """An image as the runtime lists it. `handler` is the runtime handler that it was pulled for."""

    id: str
    size: int
    pinned: bool = False
    handler: str = ""
    names: tuple[str, ...] = ()


def image_key(image_id: str, handler: str) -> str:
    """How an image is identified where the runtime keeps one per runtime handler (KEP-4216)."""
    return f"{image_id},{handler}" if handler else image_id


class ImageRecords:
    """The records of a node. `by_handler` is the gate RuntimeClassInImageCriApi."""

    def __init__(self, *, by_handler: bool = False) -> None:
        self.by_handler = by_handler
        self.table = ImageTable()
        self._row_of: dict[str, int] = {}
        self._seen: dict[int, SeenImage] = {}

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, key: object) -> bool:
        return key in self._row_of

    def keys(self) -> Iterable[str]:
        return self._row_of.keys()

    def row(self, key: str) -> int:
        return self._row_of[key]

    def image(self, row: int) -> SeenImage:
        return self._seen[row]

    def key_of(self, image: SeenImage) -> str:
        return image_key(image.id, image.handler) if self.by_handler else image.id

    def used_key(self, image_id: str, handler: str) -> str:
        """The key that a container's image reference protects."""
        return image_key(image_id, handler) if self.by_handler else image_id

    def detect(self, images: Sequence[SeenImage], used: Iterable[str], now: float) -> set[str]:
        """Take in what the runtime has now; returns the keys in use, known or not.

        A new image is first seen `now`, one in use was last used `now`, one that is gone is forgotten:
        should it come back it is new.
        """
        keys = [self.key_of(image) for image in images]
        used = list(used)
        table = self.table
        present = np.zeros(len(table.columns.live), np.bool_)
        for position in mark(self._row_of, keys, present):
            key, image = keys[position], images[position]
            if key not in self._row_of:
                self._row_of[key] = table.add(key, size=image.size, detected=now, pinned=image.pinned)
        if len(present) < len(table.columns.live):
            present = np.concatenate([present, np.zeros(len(table.columns.live) - len(present), np.bool_)])
        columns = table.columns
        for key, image in zip(keys, images, strict=True):
            row = self._row_of[key]
            present[row] = True
            if self._seen.get(row) is not image:
                self._seen[row] = image
                columns.size[row] = image.size
                columns.pinned[row] = image.pinned
        columns.in_use[:] = False
        mark(self._row_of, used, columns.in_use)
        for row in np.flatnonzero(columns.live & ~present).tolist():
            self.forget(table.key(row))
        columns.last_used[columns.in_use] = now
        return set(used)

    def forget(self, key: str) -> None:
        row = self._row_of.pop(key)
        self._seen.pop(row, None)
        self.table.remove(key)

    def export(self) -> dict[str, dict[str, float]]:
        """Times and size by key, for a file."""
        columns = self.table.columns
        return {
            key: {
                "firstDetected": float(columns.first_detected[row]),
                "lastUsed": float(columns.last_used[row]),
                "size": int(columns.size[row]),
            }
            for key, row in self._row_of.items()
        }

    def restore(self, saved: Mapping[str, Mapping[str, float]], now: float) -> None:
        """Take up saved times; ones that lie after `now` (the clock was set back) become `now`."""
        for key, record in saved.items():
            if key in self._row_of:
                continue
            detected, used = min(record["firstDetected"], now), min(record["lastUsed"], now)
            row = self.table.add(key, size=int(record["size"]), detected=detected)
            self.table.columns.last_used[row] = used if used > 0 else NEVER
            self._row_of[key] = row
            self._seen[row] = SeenImage(key, int(record["size"]))
