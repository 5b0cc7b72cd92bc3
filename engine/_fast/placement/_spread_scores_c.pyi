import numpy as np
from numpy.typing import NDArray

def domains_among(domain: NDArray[np.int32], nodes: NDArray[np.int64], most: int) -> int: ...
def add_spread(
    total: NDArray[np.int64],
    nodes: NDArray[np.int64],
    weight: int,
    base: NDArray[np.float64],
    domain: NDArray[np.int32],
    values: NDArray[np.float64],
    keyed: NDArray[np.uint8],
) -> None: ...
