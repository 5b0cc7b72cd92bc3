"""Prometheus' text of many series at once: compiled, or the plain twin under `KUBENGINE_PURE=1`."""

from engine._fast._exposition_py import ABSENT, Series
from engine._fast._select import PURE

if PURE:
    from engine._fast._exposition_py import exposition
else:
    from engine._fast._exposition_c import exposition

__all__ = ["ABSENT", "Series", "exposition"]
