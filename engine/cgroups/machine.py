"""Reads the machine's huge page sizes, swap and disks."""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

from engine.api.errors import InvalidInput
from engine.host.cgroupfs.mounts import CgroupHierarchy


@cache
def huge_page_sizes(pools: str = "/sys/kernel/mm/hugepages") -> tuple[int, ...]:
    """Return the page sizes in bytes for which the kernel has pools, ascending."""
    directory = Path(pools)
    names = [entry.name for entry in directory.iterdir()] if directory.is_dir() else []
    return tuple(sorted(int(name.removeprefix("hugepages-").removesuffix("kB")) * 1024 for name in names))


def swap_capacity(meminfo: str = "/proc/meminfo") -> int:
    """Return the swap space in bytes."""
    for line in Path(meminfo).read_text().splitlines():
        if line.startswith("SwapTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def swap_controller(hierarchy: CgroupHierarchy, version: int, own: str = "/proc/self/cgroup") -> bool:
    """Tell whether the kernel can limit swap, even if there is none; `swapaccount=0` disables it.

    cgroup v2 has the file in every cgroup but the root, so the agent looks at its own.
    """
    if version == 1:
        return Path(hierarchy.path, "memory.memsw.limit_in_bytes").exists()
    line = next((line for line in Path(own).read_text().splitlines() if line.startswith("0::")), "0::/")
    return Path(hierarchy.path, line.removeprefix("0::").lstrip("/"), "memory.swap.max").exists()


def device_number(path: str) -> str:
    """Return a block device's number as the kernel spells it, `8:0`. Raises `InvalidInput` for
    anything else.
    """
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"no such device: {error}", subject=path) from None
    if not stat.S_ISBLK(status.st_mode):
        raise InvalidInput("is not a block device", subject=path)
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
