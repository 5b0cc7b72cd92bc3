"""Read tables from CSV and Parquet files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from engine.api.errors import InvalidInput
from engine.plan.snapshot.parquet_bounds import check_bounds, plain_texts, repeated_texts

MAX_VALUES = 200_000_000
"""In all columns of a Parquet file."""


def read_table(path: str) -> pa.Table:
    """Read a CSV (`.csv`, `.csv.gz`) or Parquet file. Raise `InvalidInput` with the path."""
    try:
        if path.endswith((".parquet", ".pq")):
            with pq.ParquetFile(Path(path)) as file:
                check_bounds(file.metadata, path, MAX_VALUES)
                texts = repeated_texts(file)
            with pq.ParquetFile(Path(path), read_dictionary=texts) as file:
                return plain_texts(file.read(), texts, path)
        with pa.input_stream(path) as stream:
            return pa_csv.read_csv(stream)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInput(
            f"not a readable table: {' '.join(str(error).split())[:200]}", subject=path
        ) from None
