"""Write JSON of many objects at once: compiled, or the plain twin under `KUBENGINE_PURE=1`."""

from engine._fast._select import PURE
from engine._fast.writing._members_py import CLOSE, MOMENT, OPEN, MemberStep

if PURE:
    from engine._fast.writing._members_py import filled
else:
    from engine._fast.writing._members_c import filled

__all__ = ["CLOSE", "MOMENT", "OPEN", "MemberStep", "filled"]
