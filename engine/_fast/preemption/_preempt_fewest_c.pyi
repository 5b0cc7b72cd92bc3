import numpy as np
from numpy.typing import NDArray

def best_of_size(
    amounts: NDArray[np.int64],
    priorities: NDArray[np.int64],
    needs: NDArray[np.int64],
    goals: NDArray[np.int64],
    size: int,
    start: NDArray[np.int32],
    seconds: float,
    steps: int,
) -> tuple[NDArray[np.int32], bool, int]: ...
