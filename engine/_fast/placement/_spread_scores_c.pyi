import numpy as np
from numpy.typing import NDArray

def seen_cells(cell: NDArray[np.int32], nodes: NDArray[np.uint8], cells: int) -> NDArray[np.bool_]: ...
def best_nodes(
    total: NDArray[np.int64], nodes: NDArray[np.uint8], cell: NDArray[np.int32], score: NDArray[np.int64]
) -> NDArray[np.int64]: ...
