import numpy as np
from numpy.typing import NDArray

def seen_cells(cell: NDArray[np.int32], nodes: NDArray[np.uint8], cells: int) -> NDArray[np.bool_]: ...
def best_nodes(
    total: NDArray[np.int16],
    nodes: NDArray[np.uint8],
    cell: NDArray[np.int32] | None,
    score: NDArray[np.int16] | None,
) -> NDArray[np.int64]: ...
