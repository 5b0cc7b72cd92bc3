"""The choice of exclusive CPUs: the compiled kernel, or its twin with KUBENGINE_PURE=1."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.pinning._cpu_assignment_py import Layout, take_distributed, take_packed
else:
    from engine._fast.pinning._cpu_assignment_c import (  # type: ignore[assignment]
        Layout,
        take_distributed,
        take_packed,
    )

__all__ = ["Layout", "take_distributed", "take_packed"]
