"""Count the open descriptors and sockets of the processes of cgroups, and read their limit of open files.

The counts are cAdvisor's (`processStatsFromProcs`): those of the group's own processes, not of the groups
within it. The limit is the soft one of the first process. Files: proc(5).

The number of descriptors is the containers' choice, so the work is bounded: 64 KiB of cgroup.procs and
`MOST_DESCRIPTORS` descriptors count per group, and no group is begun after the time is used up.
"""

from __future__ import annotations

from typing import Final

from engine._fast.reading._descriptors_c import count_descriptors

__all__ = ["ABSENT", "DESCRIPTOR_COLUMNS", "MOST_DESCRIPTORS", "count_descriptors"]

ABSENT: Final = -(1 << 63)
DESCRIPTOR_COLUMNS: Final = ("descriptors", "sockets", "open_files_limit")
MOST_DESCRIPTORS: Final = 1 << 16
