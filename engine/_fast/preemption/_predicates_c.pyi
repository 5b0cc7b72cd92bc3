import numpy as np
from numpy.typing import NDArray

def request_sums(
    requests: NDArray[np.int64], offsets: NDArray[np.int64], threads: int = 0
) -> NDArray[np.int64]: ...
def short_on_each_node(
    wanted: NDArray[np.int64],
    overhead: NDArray[np.int64],
    droppable: NDArray[np.uint8],
    used: NDArray[np.int64],
    pods: NDArray[np.int64],
    allocatable: NDArray[np.int64],
    pod_limit: NDArray[np.int64],
    threads: int = 0,
) -> NDArray[np.int64]: ...
