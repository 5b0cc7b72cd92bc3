from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine._fast.devices._topology_py import Distances, Family, Flags

def generate(
    nodes: int,
    groups: NDArray[np.uint64],
    everything: NDArray[np.int64],
    available: NDArray[np.int64],
    reusable: NDArray[np.int64],
    request: int,
) -> Flags: ...
def merge(nodes: int, families: Sequence[Family], distances: Distances | None) -> tuple[int, bool]: ...
