from collections.abc import Iterator, Sequence

from engine._fast.writing.exposition import Series

def exposition(series: Sequence[Series], piece: int = ...) -> Iterator[bytes]: ...
