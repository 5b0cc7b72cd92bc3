"""Remembers of each image when it was first seen and last used, its size, pinning and names.

The times are in an `ImageTable`, so that the same kernels serve the agent and the planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, count
from typing import Final, NamedTuple

from engine._fast.ranking.image_order import mark, match
from engine.tables import NEVER, ImageTable


class SeenImage(NamedTuple):
    """Hold an image as the runtime lists it; `handler` is the runtime handler that it was pulled for."""

    id: str
    size: int
    pinned: bool = False
    handler: str = ""
    names: tuple[str, ...] = ()


NO_IMAGE: Final = SeenImage("", 0)
"""The entry of free rows."""


def image_key(image_id: str, handler: str) -> str:
    """Return the key of an image where the runtime keeps one per runtime handler (KEP-4216)."""
    return f"{image_id},{handler}" if handler else image_id


class ImageRecords:
    """Keep the image records of a node; `by_handler` is the gate RuntimeClassInImageCriApi."""

    def __init__(self, *, by_handler: bool = False) -> None:
        self.by_handler = by_handler
        self.table = ImageTable()
        self._row_of = self.table.row_of
        self._seen: list[SeenImage] = []

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

    def unused(self) -> list[int]:
        """Return the rows of images that are neither in use nor pinned."""
        cells = self.table.cells
        states = zip(count(), cells.live, cells.in_use, cells.pinned, strict=False)
        return [row for row, live, in_use, pinned in states if live and not in_use and not pinned]

    def images(self) -> list[SeenImage]:
        """Return the images by row; `NO_IMAGE` in free rows."""
        return self._seen.copy()

    def keys_of(self, rows: Iterable[int]) -> list[str]:
        """Return the keys of rows that hold an image."""
        return self.table.keys_at(rows)

    def key_of(self, image: SeenImage) -> str:
        return image_key(image.id, image.handler) if self.by_handler else image.id

    def used_key(self, image_id: str, handler: str) -> str:
        """Return the key that a container's image reference protects."""
        return image_key(image_id, handler) if self.by_handler else image_id

    def detect(self, images: Sequence[SeenImage], used: Iterable[str], now: float) -> None:
        """Take the runtime's images and the keys that containers use, known or not.

        A key that is not an image's, as some runtimes return, protects the image of that name. A new image
        is first seen `now`, a used one last used `now`, and a missing one is forgotten: if it returns, it is
        new. An image that is the same object as last time is skipped.
        """
        keys = [self.key_of(image) for image in images] if self.by_handler else [i.id for i in images]
        listed = list(images)
        present = bytearray(len(self.table.cells.live))
        for position in match(self._row_of, keys, listed, self._seen, present):
            row = self._record(keys[position], listed[position], now)
            if row >= len(present):
                present.extend(bytes(row + 1))
            present[row] = True
        cells = self.table.cells
        if present.count(True) < len(self.table):
            self.forget_rows([row for row in compress(count(), cells.live) if not present[row]])
        cells.in_use[:] = bytes(len(cells.in_use))
        unlisted = set(mark(self._row_of, list(used), cells.in_use))
        if unlisted:
            mark(
                self._row_of,
                [self.key_of(i) for i in images if not unlisted.isdisjoint(i.names)],
                cells.in_use,
            )
        for row in compress(count(), cells.in_use):
            cells.last_used[row] = now

    def _record(self, key: str, image: SeenImage, now: float) -> int:
        row = self._row_of.get(key, -1)
        if row < 0:
            row = self.table.add(key, size=image.size, detected=now)
        if row >= len(self._seen):
            self._seen.extend([NO_IMAGE] * (row + 1 - len(self._seen)))
        self._seen[row] = image
        self.table.cells.size[row] = image.size
        self.table.cells.pinned[row] = image.pinned
        return row

    def forget_rows(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._seen[row] = NO_IMAGE
        self.table.remove_rows(rows)

    def export(self) -> dict[str, dict[str, float]]:
        """Return times and sizes by key, for a file."""
        cells = self.table.cells
        return {
            key: {
                "firstDetected": cells.first_detected[row],
                "lastUsed": cells.last_used[row],
                "size": cells.size[row],
            }
            for key, row in self._row_of.items()
        }

    def restore(self, saved: Mapping[str, Mapping[str, float]], now: float) -> None:
        """Restore saved times; those after `now` (the clock was set back) become `now`."""
        for key, record in saved.items():
            if key in self._row_of:
                continue
            detected, used = min(record["firstDetected"], now), min(record["lastUsed"], now)
            row = self._record(key, SeenImage(key, int(record["size"])), detected)
            self.table.cells.last_used[row] = used if used > 0 else NEVER
