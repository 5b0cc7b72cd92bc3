"""Generate images of a synthetic cluster: those that pods use, and old unused ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.plan.snapshot.columns import IMAGE_FIELDS, Snapshot
from engine.plan.snapshot.lazy_table import whole

Mi = 2**20
LEFTOVERS = 18
IMAGE_SHARE = 0.5
"""Share of the file system, on average."""


def image_sizes(random: np.random.Generator, *, templates: int) -> NDArray[np.int64]:
    """Return int64[templates]: bytes of each template's image, most between 60 MiB and 1 GiB."""
    return (random.lognormal(5.2, 0.9, templates) * Mi).astype(np.int64) + 4 * Mi


def node_images(
    random: np.random.Generator, snapshot: Snapshot, sizes: NDArray[np.int64], now: float
) -> pa.Table:
    """Return one image per template on the nodes that run it, and about `LEFTOVERS` unused ones a node."""
    nodes, templates = snapshot.node_count, len(sizes)
    pairs = np.unique(snapshot.column("node").astype(np.int64) * templates + snapshot.column("template"))
    unused_node = np.repeat(np.arange(nodes), random.poisson(LEFTOVERS, nodes))
    unused = np.unique(unused_node * templates + random.integers(0, templates, len(unused_node)))
    unused = np.setdiff1d(unused, pairs, assume_unique=True)
    both = np.sort(np.concatenate([pairs, unused]))
    in_use = np.isin(both, pairs, assume_unique=True)
    node, template = both // templates, both % templates
    room = snapshot.reading("imagefs_capacity")
    held = np.bincount(node, weights=sizes[template], minlength=nodes)
    sizes = (sizes * (IMAGE_SHARE * room.mean() / max(held.mean(), 1.0))).astype(np.int64) + 1
    age = np.where(in_use, 0.0, np.minimum(random.exponential(6 * 86400.0, len(both)), 90 * 86400.0))
    first = now - age - random.exponential(20 * 86400.0, len(both))
    codes = pa.array(template.astype(np.int32))
    ids = pa.array([f"sha256:{t:064x}" for t in range(templates)])
    names = pa.array([f"registry.example/image-{t:05d}:1" for t in range(templates)])
    rows = len(both)
    return pa.table(
        {
            "node": node.astype(np.int32),
            "image": pa.DictionaryArray.from_arrays(codes, ids),
            "names": pa.DictionaryArray.from_arrays(codes, names),
            "size": sizes[template],
            "last_used": np.floor(now - age),
            "first_detected": np.floor(first),
            "pinned": np.zeros(rows, bool),
            "in_use": in_use,
            "source": pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(rows, np.int32)), pa.array(["synthetic"])
            ),
        },
        pa.schema(list(IMAGE_FIELDS.items())),
    )


def with_disk_use(random: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Add readings of a file system that holds the images, and at most as much other data."""
    images = snapshot.images
    node, size = images["node"].to_numpy(), images["size"].to_numpy()
    held = np.bincount(node, weights=size, minlength=snapshot.node_count)
    capacity = snapshot.reading("imagefs_capacity")
    other = capacity * random.uniform(0.05, 0.45, snapshot.node_count)
    available = np.maximum(capacity - held - other, capacity * 0.01).astype(np.int64)
    nodes = whole(snapshot.nodes)
    for name in ("reading/imagefs_available", "reading/nodefs_available"):
        nodes = nodes.set_column(nodes.schema.get_field_index(name), name, pa.array(available))
    return replace(snapshot, nodes=nodes)
