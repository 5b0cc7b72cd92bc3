"""Write Prometheus' text of many series at once: compiled, or the plain twin under `KUBENGINE_PURE=1`."""

from engine._fast._select import PURE
from engine._fast.writing._exposition_py import ABSENT, Series, Texts, joined

if PURE:
    from engine._fast.writing._exposition_py import exposition
else:
    from engine._fast.writing._exposition_c import exposition

__all__ = ["ABSENT", "Series", "Texts", "exposition", "joined"]
