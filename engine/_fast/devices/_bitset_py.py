"""State the rule of the bitset kernels over plain integers.

A bitset is a one-dimensional uint64 array; member `i` is bit `i % 64` of word `i // 64`. The two operands of
a kernel have the same number of words; results are new arrays.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bits: TypeAlias = "NDArray[np.uint64]"
Indices: TypeAlias = "NDArray[np.int32]"


def _members(bits: Bits) -> list[int]:
    return [
        64 * word + bit for word, value in enumerate(bits.tolist()) for bit in range(64) if value >> bit & 1
    ]


def _same_length(a: Bits, b: Bits) -> None:
    if a.shape != b.shape:
        raise ValueError(f"bitsets of {a.shape[0]} and {b.shape[0]} words")


def difference(a: Bits, b: Bits) -> Bits:
    """Return the members of `a` that are not in `b`."""
    _same_length(a, b)
    return np.array([x & ~y & (2**64 - 1) for x, y in zip(a.tolist(), b.tolist(), strict=True)], np.uint64)


def intersection(a: Bits, b: Bits) -> Bits:
    """Return the members of both."""
    _same_length(a, b)
    return np.array([x & y for x, y in zip(a.tolist(), b.tolist(), strict=True)], np.uint64)


def count(a: Bits) -> int:
    """Return the number of members."""
    return len(_members(a))


def count_intersection(a: Bits, b: Bits) -> int:
    """Return how many members are in both."""
    return count(intersection(a, b))


def count_difference(a: Bits, b: Bits) -> int:
    """Return how many members of `a` are not in `b`."""
    return count(difference(a, b))


def first(a: Bits, n: int) -> Indices:
    """Return the `n` lowest members in ascending order, fewer if there are fewer; shape (<= n,), int32."""
    return np.array(_members(a)[: max(n, 0)], np.int32)


def first_of_difference(a: Bits, b: Bits, n: int) -> list[int]:
    """Return the `n` lowest members of `a` that are not in `b`, in ascending order, fewer if
    there are fewer.
    """
    return _members(difference(a, b))[: max(n, 0)]
