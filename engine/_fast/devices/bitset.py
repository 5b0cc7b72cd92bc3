"""Represent sets of dense indices as uint64 words: difference, intersection, counts, lowest members."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.devices._bitset_py import (
        count,
        count_difference,
        count_intersection,
        difference,
        first,
        first_of_difference,
        intersection,
    )  # fmt: skip
else:
    from engine._fast.devices._bitset_c import (
        count,
        count_difference,
        count_intersection,
        difference,
        first,
        first_of_difference,
        intersection,
    )  # fmt: skip

__all__ = [
    "count", "count_difference", "count_intersection", "difference", "first", "first_of_difference",
    "intersection",
]  # fmt: skip
