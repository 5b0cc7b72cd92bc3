"""The native loop that runs probes, and the types of its news; it has no twin."""

from typing import TYPE_CHECKING

from engine._fast.probing._loop_c import BOUNDS, LATENESS, PROBE_BYTES, ProbeLoop

if TYPE_CHECKING:
    from engine._fast.probing._loop_c import News, ProbeInfo

__all__ = ["BOUNDS", "LATENESS", "PROBE_BYTES", "News", "ProbeInfo", "ProbeLoop"]
