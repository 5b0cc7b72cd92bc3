"""Read numbers of many cgroups at once: compiled, or the plain twin under `KUBENGINE_PURE=1`."""

from engine._fast._select import PURE
from engine._fast.reading._groups_py import ABSENT, COLUMNS, IO_COLUMNS, PRESSURE, V1_CONTROLLERS

if PURE:
    from engine._fast.reading._groups_py import refresh_groups
else:
    from engine._fast.reading._groups_c import refresh_groups

__all__ = ["ABSENT", "COLUMNS", "IO_COLUMNS", "PRESSURE", "V1_CONTROLLERS", "refresh_groups"]
