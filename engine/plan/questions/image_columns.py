"""Arrange the images of a snapshot as the columns that the rules of image garbage collection read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.plan.answers.answer import Rows
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.image_names import used_images
from engine.tables import ImageColumns


def image_columns(snapshot: Snapshot, rows: Rows) -> tuple[ImageColumns, NDArray[np.int64]]:
    """Return the columns of all images, and int64[nodes + 1]: the first row of each node. Note their
    origin.
    """
    images = snapshot.images
    node = images["node"].to_numpy()
    starts = np.searchsorted(node, np.arange(snapshot.node_count + 1)).astype(np.int64)
    sources = set(images["source"].unique().to_pylist())
    if "status" in sources:
        cut = int(snapshot.nodes["images_truncated"].to_numpy().sum())
        rows.note("images come from node status: at most 50 a node, no last use, so their order is not known")
        if cut:
            rows.note("nodes whose list of images is probably incomplete", cut)
    last_used = images["last_used"].to_numpy(zero_copy_only=False).astype(np.float64)
    detected = images["first_detected"].to_numpy(zero_copy_only=False).astype(np.float64)
    columns = ImageColumns(
        size=images["size"].to_numpy(),
        first_detected=np.nan_to_num(detected),
        last_used=np.nan_to_num(last_used),
        pinned=images["pinned"].to_numpy(zero_copy_only=False),
        in_use=used_images(snapshot),
        live=np.ones(len(node), np.bool_),
    )
    return columns, starts


def image_slice(columns: ImageColumns, first: int, last: int) -> ImageColumns:
    """Return rows `first` to `last` (exclusive) as views, without a copy."""
    names = ("size", "first_detected", "last_used", "pinned", "in_use", "live")
    return ImageColumns(*(getattr(columns, name)[first:last] for name in names))
