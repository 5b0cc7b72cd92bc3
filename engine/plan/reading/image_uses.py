"""Record when images were used after the snapshot, which tells a good removal from one that is
pulled again.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from engine.api.errors import InvalidInput
from engine.plan.reading.table_file import read_table


@dataclass(frozen=True)
class ImageUses:
    """Hold (node, image) pairs; an empty node means any."""

    pairs: frozenset[tuple[str, str]]

    def again(self, node: str, image: str, names: str) -> bool:
        """Tell whether an image, by id or by any of its names, is used on this node or anywhere."""
        keys = (image, *names.split())
        return any((node, key) in self.pairs or ("", key) in self.pairs for key in keys)


def image_uses(path: str, after: float, until: float) -> ImageUses:
    """Read uses later than `after` up to `until` (Unix seconds) from columns `image`, `used_at` and
    optionally `node`.

    Raise `InvalidInput` with the file and column.
    """
    table = read_table(path)
    for name in ("image", "used_at"):
        if name not in table.column_names:
            raise InvalidInput(f"has no column {name!r}", subject=path)
    try:
        at = table["used_at"].cast(pa.float64())
    except pa.ArrowException as error:
        raise InvalidInput(f"used_at: expected Unix seconds ({error})", subject=path) from None
    table = table.filter(pc.and_(pc.greater(at, after), pc.less_equal(at, until)))
    images = table["image"].cast(pa.string()).to_pylist()
    nodes = (
        table["node"].cast(pa.string()).to_pylist() if "node" in table.column_names else [""] * len(images)
    )
    return ImageUses(frozenset((node or "", image) for node, image in zip(nodes, images, strict=True)))
