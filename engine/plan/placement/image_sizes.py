"""Know which nodes have an image, and how large it is there.

A cluster has millions of images on its nodes. Only which one each is stays in memory: the nodes follow from
how many each has, and the sizes from the names, as long as images with equal names are equally large.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.kept import once_per_snapshot
from engine.plan.snapshot.lazy_table import coded, parts_of

Values = NDArray[np.int64]


class ImageSizes:
    """Answer questions about the images of a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._images, self._nodes = snapshot.images, snapshot.node_count
        texts, self._codes = coded(self._images, "names")
        self._named: dict[str, list[int]] = {}
        for code, text in enumerate(texts):
            for name in text.split():
                self._named.setdefault(name, []).append(code)
        self._count = len(texts)

    def of(self, name: str) -> Values:
        """Return int64[nodes]: the size of an image, -1 where it is not."""
        mine = self._named.get(name, [])
        rows = np.flatnonzero(self._codes == mine[0] if len(mine) == 1 else np.isin(self._codes, mine))
        found = np.full(self._nodes, -1, np.int64)
        at = np.searchsorted(self._offsets, rows, "right") - 1
        by_name = self._by_name
        sizes = self._images["size"].to_numpy()[rows] if by_name is None else by_name[self._codes[rows]]
        found[at] = sizes
        return found

    @cached_property
    def _offsets(self) -> Values:
        """Return int64[nodes + 1]: the images of node i are rows `offsets[i]` to `offsets[i + 1]`."""
        counts, last = np.zeros(self._nodes, np.int64), 0
        for part in parts_of(self._images, "node"):
            node = part.to_numpy()
            if len(node) and node[0] < last:
                raise InvalidInput("images.node: not in the order of nodes")
            last = node[-1] if len(node) else last
            counts += np.bincount(node, minlength=self._nodes)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    @cached_property
    def _by_name(self) -> Values | None:
        """Return int64[names]: the size of the images with these names; None if those of some differ."""
        found, start = np.full(self._count, -1, np.int64), 0
        for part in parts_of(self._images, "size"):
            sizes, codes = part.to_numpy(), self._codes[start : start + len(part)]
            known = found[codes]
            found[codes] = sizes
            if ((known != sizes) & (known != -1)).any() or (found[codes] != sizes).any():
                return None
            start += len(part)
        return found


@once_per_snapshot
def image_sizes(snapshot: Snapshot) -> ImageSizes:
    """Return the images of the nodes of a snapshot."""
    return ImageSizes(snapshot)
