"""Tell from the owners of placed pods what happens to them when their node goes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from engine.plan.snapshot.columns import Snapshot
from engine.tables import MIRROR, STATIC


def of_daemon_sets(snapshot: Snapshot) -> NDArray[np.bool_]:
    """Return bool[placed]: pods of DaemonSets, which end with their node."""
    return _mask(pc.starts_with(_owners(snapshot), "DaemonSet/"))


def bound_to_node(snapshot: Snapshot) -> NDArray[np.bool_]:
    """Return bool[placed]: daemons and static pods, which no other node takes."""
    static = (snapshot.column("flags") & (STATIC | MIRROR)) != 0
    bound: NDArray[np.bool_] = of_daemon_sets(snapshot) | static
    return bound


def without_controller(snapshot: Snapshot) -> NDArray[np.bool_]:
    """Return bool[placed]: pods that nothing creates again."""
    return _mask(pc.equal(_owners(snapshot), ""))


def _owners(snapshot: Snapshot) -> pa.ChunkedArray:
    return snapshot.pods["owner"].slice(0, snapshot.placed).cast(pa.string())


def _mask(found: pa.ChunkedArray) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = found.to_numpy()
    return mask
