"""Sets of dense indices as uint64 words: difference, intersection, counts, lowest members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine._fast import _bitset_py
from engine._fast._select import PURE

if PURE or TYPE_CHECKING:
    _chosen = _bitset_py
else:
    from engine._fast import _bitset_c as _chosen

difference = _chosen.difference
intersection = _chosen.intersection
count = _chosen.count
count_intersection = _chosen.count_intersection
count_difference = _chosen.count_difference
first = _chosen.first
first_of_difference = _chosen.first_of_difference
