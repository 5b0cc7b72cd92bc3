from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

def use_width(doubles: int) -> None: ...
def victims(
    ranking: Any,
    qos: Any,
    flags: Any,
    priority: Any,
    rows: array[int] | NDArray[np.int32] | None,
    critical: bool,
    preemptor_priority: int | None,
    resources: array[int] | NDArray[np.int32],
    needs: array[int] | NDArray[np.int64],
    work: NDArray[np.int64] | None = None,
) -> tuple[array[int], array[int]]: ...
def victims_by_node(
    ranking: NDArray[np.int64],
    qos: NDArray[np.uint8],
    flags: NDArray[np.uint8],
    priority: NDArray[np.int32],
    offsets: NDArray[np.int64],
    critical: bool,
    preemptor_priority: int | None,
    resources: NDArray[np.int32],
    needs: NDArray[np.int64],
    threads: int = 0,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]: ...
