from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine._fast.ranking._image_order_py import Marks

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
    marks: Marks,
) -> list[int]: ...
def mark(index: dict[str, int], names: list[str], marks: Marks) -> list[str]: ...
