"""Find which nodes have an image, and how large it is there.

The nodes of a cluster have millions of images together. Only a code for the names of each stays in memory.
The nodes follow from how many images each has. The sizes follow from the names, if images with equal names
have equal sizes on all nodes; otherwise the column of sizes is read.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from engine._fast.placement.node_images import count_images, note_sizes, rows_on_nodes
from engine.api.errors import InvalidInput
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.lazy_table import coded, parts_of
from engine.plan.snapshot.results import once_per_snapshot

Values = NDArray[np.int64]


class ImageSizes:
    """Index the images of a snapshot by their names."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._images, self._nodes = snapshot.images, snapshot.node_count
        texts, self._codes = coded(self._images, "names")
        self._codes_of_name: dict[str, list[int]] = {}
        for code, text in enumerate(texts):
            for name in text.split():
                self._codes_of_name.setdefault(name, []).append(code)
        self._count = len(texts)

    def sizes_on_nodes(self, name: str) -> Values:
        """Return int64[nodes]: the bytes of the image with this name, -1 on nodes without it."""
        found = np.full(self._nodes, -1, np.int64)
        codes = self._codes_of_name.get(name)
        if codes is None:
            return found
        wanted = np.zeros(self._count, np.uint8)
        wanted[codes] = 1
        rows = rows_on_nodes(self._codes, self._offsets, wanted)
        nodes = np.flatnonzero(rows >= 0)
        rows, by_code = rows[nodes], self._size_by_code
        found[nodes] = (
            self._images["size"].to_numpy()[rows] if by_code is None else by_code[self._codes[rows]]
        )
        return found

    @cached_property
    def _offsets(self) -> Values:
        """Return int64[nodes + 1]: the images of node i are rows `offsets[i]` to `offsets[i + 1]`. Raise
        `InvalidInput` if the images are not in the order of the nodes.
        """
        counts, last = np.zeros(self._nodes, np.int64), 0
        for part in parts_of(self._images, "node"):
            node = part.to_numpy()
            if not count_images(node, counts) or (len(node) and node[0] < last):
                raise InvalidInput("images.node: not in the order of nodes")
            last = node[-1] if len(node) else last
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    @cached_property
    def _size_by_code(self) -> Values | None:
        """Return int64[codes]: the bytes of the images with a code; None if two of them differ in size."""
        found, start = np.full(self._count, -1, np.int64), 0
        for part in parts_of(self._images, "size"):
            if not note_sizes(self._codes[start : start + len(part)], part.to_numpy(), found):
                return None
            start += len(part)
        return found


@once_per_snapshot
def image_sizes(snapshot: Snapshot) -> ImageSizes:
    """Return the index of a snapshot's images."""
    return ImageSizes(snapshot)
