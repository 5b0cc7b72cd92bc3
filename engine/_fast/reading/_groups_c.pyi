from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def refresh_groups(
    tops: Sequence[str],
    cgroups: list[bytes | None],
    parents: NDArray[np.int64],
    due: NDArray[np.uint8],
    numbers: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]: ...
