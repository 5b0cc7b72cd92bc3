"""NUMA hints and their merge, over sets of nodes as masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine._fast import _topology_py
from engine._fast._select import PURE
from engine._fast._topology_py import (
    ANY_NODE,
    MAX_NODES,
    NO_MASK,
    NOWHERE,
    ORDINARY,
    PREFERRED,
    Distances,
    Family,
    Flags,
)

if PURE or TYPE_CHECKING:
    _chosen = _topology_py
else:
    from engine._fast import _topology_c as _chosen

generate = _chosen.generate
merge = _chosen.merge

__all__ = [
    "ANY_NODE",
    "MAX_NODES",
    "NOWHERE",
    "NO_MASK",
    "ORDINARY",
    "PREFERRED",
    "Distances",
    "Family",
    "Flags",
    "generate",
    "merge",
]
