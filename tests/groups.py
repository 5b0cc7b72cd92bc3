"""List cgroups of this machine while others remove theirs: `Path.rglob` would fail then."""

from __future__ import annotations

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def groups_with(part: str, below: Path = CGROUPS) -> list[str]:
    """Return the directories of the cgroups below `below` with `part` in their path."""
    return [directory for directory, _, _ in os.walk(below) if part in directory]
