"""Detects when a file system shows the space that removals freed. Pure: readings in, verdict out.

Blocks may become free long after a removal returns (a runtime that collects layers later, a file system that
frees in the background): kubernetes/kubernetes#130663.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

QUIET_LOOKS: Final = 3


@dataclass(slots=True)
class Settling:
    """Watch an available amount in any unit; it has settled after `QUIET_LOOKS` readings in a row without a
    new maximum.
    """

    most: int = -1
    quiet: int = 0

    def look(self, available: int) -> bool:
        """Take a reading; return whether it has settled."""
        self.quiet = 0 if available > self.most else self.quiet + 1
        self.most = max(self.most, available)
        return self.quiet >= QUIET_LOOKS
