import numpy as np
from numpy.typing import NDArray

def count_descriptors(
    proc: str,
    top: str,
    cgroups: list[bytes | None],
    rows: NDArray[np.int64],
    counts: NDArray[np.int64],
    nanoseconds: int,
) -> int: ...
