"""Count the open descriptors of cgroups: compiled, or the plain twin under `KUBENGINE_PURE=1`."""

from engine._fast._select import PURE
from engine._fast.reading._descriptors_py import ABSENT, DESCRIPTOR_COLUMNS, MOST_DESCRIPTORS

if PURE:
    from engine._fast.reading._descriptors_py import count_descriptors
else:
    from engine._fast.reading._descriptors_c import count_descriptors

__all__ = ["ABSENT", "DESCRIPTOR_COLUMNS", "MOST_DESCRIPTORS", "count_descriptors"]
