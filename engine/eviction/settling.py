"""When a file system has given back what removals free. Pure: readings in, verdict out.

A removal may be answered long before its blocks are free (a runtime that collects its layers later, a file
system that frees them in the background): kubernetes/kubernetes#130663.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

QUIET_LOOKS: Final = 3


@dataclass(slots=True)
class Settling:
    """Looks at what is available, in any unit. It has settled after `QUIET_LOOKS` looks in a row of which
    none saw more than any before."""

    most: int = -1
    quiet: int = 0

    def look(self, available: int) -> bool:
        """Take in one reading; whether nothing more is to be expected."""
        self.quiet = 0 if available > self.most else self.quiet + 1
        self.most = max(self.most, available)
        return self.quiet >= QUIET_LOOKS
