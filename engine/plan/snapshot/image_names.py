"""Find which images a node's pods use: from the runtime, else by comparing names."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.plan.snapshot.columns import Snapshot


def normalized(name: str) -> str:
    """Normalize a name as the runtime would store it: `nginx` → `docker.io/library/nginx:latest`."""
    name, at, digest = name.partition("@")
    head, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif "." not in head and ":" not in head and head != "localhost":
        name = f"docker.io/{name}"
    if not at and ":" not in name.rpartition("/")[2]:
        name += ":latest"
    return name + at + digest


def used_images(snapshot: Snapshot) -> NDArray[np.bool_]:
    """Return bool[images]: in use on their node. Known from the runtime or generated; otherwise because a pod
    names it.
    """
    images = snapshot.images
    known = images["in_use"].is_valid().to_numpy()
    used: NDArray[np.bool_] = images["in_use"].fill_null(False).to_numpy()
    if known.all():
        return used
    by_template = [_images_of(spec) for spec in snapshot.templates["spec"].to_pylist()]
    template, offsets = snapshot.column("template"), snapshot.offsets
    node = images["node"].to_numpy()
    names = images["names"].to_pylist()
    wanted: set[str] = set()
    current = -1
    used = used.copy()
    for row in np.flatnonzero(~known).tolist():
        if node[row] != current:
            current = int(node[row])
            mine = np.unique(template[offsets[current] : offsets[current + 1]]).tolist()
            wanted = set().union(*(by_template[t] for t in mine))
        used[row] = any(normalized(name) in wanted for name in names[row].split())
    return used


def _images_of(spec: str) -> frozenset[str]:
    plain = msgspec.json.decode(spec)
    containers = [*plain.get("containers", ()), *plain.get("initContainers", ())]
    return frozenset(normalized(c["image"]) for c in containers if c.get("image"))
