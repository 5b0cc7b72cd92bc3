"""Count the images of nodes, and find the size that an image has on each of them.

The images of a cluster are rows in the order of their nodes, each with a code for its names.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.int64]


def count_images(node: NDArray[np.int32], counts: Values) -> bool:
    """Add the images of the nodes `node`, int32[images], to `counts`, int64[nodes]; return whether they are
    in the order of the nodes. Raise `ValueError` for a node that `counts` lacks.
    """
    if len(node) and not (node.min() >= 0 and node.max() < len(counts)):
        raise ValueError("expected nodes with a count")
    counts += np.bincount(node, minlength=len(counts))
    return not np.any(node[1:] < node[:-1])


def note_sizes(code: NDArray[np.int32], size: Values, sizes: Values) -> bool:
    """Write the `size` of each image, int64[images], into `sizes`, int64[codes], where -1 is not known yet.

    Return whether all images with one code have one size; if not, `sizes` has any of them. Raise
    `ValueError` for a code that `sizes` lacks.
    """
    if len(code) and not (code.min() >= 0 and code.max() < len(sizes)):
        raise ValueError("expected codes with a size")
    known = sizes[code]
    sizes[code] = size
    # The second test finds sizes that differ among these images: the last one has won.
    return not (((known != size) & (known != -1)).any() or (sizes[code] != size).any())


def rows_on_nodes(code: NDArray[np.int32], offsets: Values, wanted: NDArray[np.uint8]) -> Values:
    """Return int64[nodes]: the last row of each node whose code is `wanted`, uint8[codes]; -1 for none.

    The images of node i are rows `offsets[i]` to `offsets[i + 1]`. Raise `ValueError` for offsets that are
    not ascending or beyond the rows, and for a code that `wanted` lacks.
    """
    count = len(offsets) - 1
    found = np.full(max(count, 0), -1, np.int64)
    if count < 1:
        return found
    if offsets[0] < 0 or offsets[-1] > len(code) or (np.diff(offsets) < 0).any():
        raise ValueError("expected ascending offsets")
    mine = code[offsets[0] : offsets[-1]]
    if len(mine) and not (mine.min() >= 0 and mine.max() < len(wanted)):
        raise ValueError("expected known codes")
    rows = np.flatnonzero(wanted[mine]) + offsets[0]
    found[np.searchsorted(offsets, rows, "right") - 1] = rows
    return found
