from array import array
from collections.abc import Iterator, Sequence

from engine._fast.writing.exposition import Texts
from engine._fast.writing.members import MemberStep

def filled(
    texts: Texts,
    forms: Sequence[Sequence[MemberStep]],
    which: array[int],
    rows: array[int],
    piece: int = ...,
) -> Iterator[bytes]: ...
