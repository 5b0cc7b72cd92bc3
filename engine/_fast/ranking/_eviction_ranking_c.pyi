from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

def order_by_excess(
    usage: NDArray[np.int64],
    known: NDArray[np.uint8],
    request: NDArray[np.int64],
    fraction: NDArray[np.int32] | None,
    priority: NDArray[np.int32],
    above_zero: bool = False,
) -> NDArray[np.int32]: ...
def order_by_count(
    count: NDArray[np.int64], known: NDArray[np.uint8], priority: NDArray[np.int32]
) -> NDArray[np.int32]: ...
def look_up(
    pods: Sequence[Any], usage: dict[str, Any], row_of: dict[str, int], name: str
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]]: ...
