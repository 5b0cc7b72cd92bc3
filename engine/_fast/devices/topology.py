"""Generate and merge NUMA hints over sets of nodes as masks: compiled, or the plain twin."""

from engine._fast._select import PURE
from engine._fast.devices._topology_py import (
    ANY_NODE,
    NO_MASK,
    NOWHERE,
    ORDINARY,
    PREFERRED,
    Distances,
    Family,
    Flags,
)  # fmt: skip

if PURE:
    from engine._fast.devices._topology_py import generate, merge
else:
    from engine._fast.devices._topology_c import generate, merge

__all__ = [
    "ANY_NODE", "NOWHERE", "NO_MASK", "ORDINARY", "PREFERRED", "Distances", "Family", "Flags",
    "generate", "merge",
]  # fmt: skip
