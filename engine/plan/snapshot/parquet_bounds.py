"""Bounds of Parquet files from elsewhere: a few of their bytes can stand for any number of rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engine.api.errors import InvalidInput

MAX_VALUES = 1_000_000_000
"""In all columns: run-length encoding stores any number of rows in a few bytes."""
MAX_TEXT = 8 * 2**30
"""Bytes of one column's text: a dictionary stores a long text once for all rows."""


def check_bounds(metadata: pq.FileMetaData, subject: str, most: int = 0) -> None:
    """Raise `InvalidInput` if a file holds more than `most` values, by default MAX_VALUES."""
    rows, columns, most = metadata.num_rows, metadata.num_columns, most or MAX_VALUES
    if rows * columns > most:
        raise InvalidInput(f"{rows} rows of {columns} columns, more than {most} values", subject=subject)


def repeated_texts(file: pq.ParquetFile) -> list[str]:
    """Return the text columns that have a dictionary, by which one text can be that of many rows."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    repeated = {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}
    return [
        field.name
        for field in file.schema_arrow
        if field.name in repeated and (pa.types.is_large_string(field.type) or pa.types.is_string(field.type))
    ]


def plain_texts(table: pa.Table, names: list[str], subject: str) -> pa.Table:
    """Replace dictionaries by the texts themselves. Raise `InvalidInput` for more than MAX_TEXT bytes."""
    for name in names:
        column = table[name]
        size = sum(map(_decoded_size, column.chunks))
        if size > MAX_TEXT:
            raise InvalidInput(f"{name}: {size} bytes of text, more than {MAX_TEXT}", subject=subject)
        at = table.column_names.index(name)
        table = table.set_column(at, name, column.cast(column.type.value_type))
    return table


def _decoded_size(chunk: pa.DictionaryArray) -> int:
    lengths = pc.cast(pc.binary_length(chunk.dictionary), pa.int64())
    return pc.sum(pc.take(lengths, chunk.indices)).as_py() or 0
