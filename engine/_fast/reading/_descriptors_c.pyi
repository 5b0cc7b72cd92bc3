from _typeshed import ReadableBuffer, WriteableBuffer

def count_descriptors(
    proc: str,
    top: str,
    cgroups: list[bytes | None],
    rows: ReadableBuffer,
    counts: WriteableBuffer,
    nanoseconds: int,
) -> int: ...
