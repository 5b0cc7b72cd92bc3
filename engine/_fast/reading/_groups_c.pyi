from collections.abc import Sequence

from _typeshed import ReadableBuffer, WriteableBuffer

def refresh_groups(
    tops: Sequence[str],
    cgroups: list[bytes | None],
    parents: ReadableBuffer,
    due: ReadableBuffer,
    numbers: WriteableBuffer,
) -> tuple[bytearray, list[tuple[int, ...]]]: ...
