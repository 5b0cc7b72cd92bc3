from typing import Any

import numpy as np
from numpy.typing import NDArray

def order_and_cut(
    primary: NDArray[np.float64],
    secondary: NDArray[np.float64],
    size: NDArray[np.int64],
    eligible: NDArray[np.bool_],
    target: int,
) -> tuple[NDArray[np.int64], int]: ...
def match(
    index: dict[str, int],
    names: list[str],
    items: list[Any],
    known: list[Any],
    marks: NDArray[np.bool_],
) -> list[int]: ...
def mark(index: dict[str, int], names: list[str], marks: NDArray[np.bool_]) -> list[str]: ...
