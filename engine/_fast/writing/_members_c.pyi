from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from engine._fast.writing.exposition import Texts
from engine._fast.writing.members import MemberStep

def filled(
    texts: Texts,
    forms: Sequence[Sequence[MemberStep]],
    which: NDArray[np.int64],
    rows: NDArray[np.int64],
    piece: int = ...,
) -> Iterator[bytes]: ...
