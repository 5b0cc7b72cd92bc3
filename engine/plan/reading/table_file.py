"""Read tables from CSV and Parquet files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from engine.api.errors import InvalidInput

MAX_VALUES = 200_000_000
"""In all columns of a Parquet file: run-length encoding stores any number of rows in a few bytes."""


def read_table(path: str) -> pa.Table:
    """Read a CSV (`.csv`, `.csv.gz`) or Parquet file. Raise `InvalidInput` with the path."""
    try:
        if path.endswith((".parquet", ".pq")):
            found = pq.read_metadata(Path(path))
            if found.num_rows * found.num_columns > MAX_VALUES:
                raise InvalidInput(
                    f"{found.num_rows} rows of {found.num_columns} columns, more than {MAX_VALUES} values",
                    subject=path,
                )
            return pq.read_table(Path(path))
        with pa.input_stream(path) as stream:
            return pa_csv.read_csv(stream)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInput(
            f"not a readable table: {' '.join(str(error).split())[:200]}", subject=path
        ) from None
