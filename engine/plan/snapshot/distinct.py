"""Find and number the distinct values of a column.

`np.unique` sorts all values to number them, or hashes them, and its first call imports `numpy.ma`: all of
this takes longer.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.integer[Any])


def numbered(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Number distinct values as they come; return the place of the first of each, and the number of every
    one.
    """
    encoded = pa.array(codes).dictionary_encode()
    number: NDArray[np.int32] = encoded.indices.to_numpy()
    first = np.empty(len(encoded.dictionary), np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return first, number


def distinct(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values in ascending order, and int64[n]: the place of each value among them."""
    encoded = pa.array(values).dictionary_encode()
    found: NDArray[np.int64] = encoded.dictionary.to_numpy()
    order = np.argsort(found)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return found[order], place[encoded.indices.to_numpy()]


def distinct_numbers(values: NDArray[Number]) -> NDArray[Number]:
    """Return the distinct values of a few numbers, in ascending order."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]
