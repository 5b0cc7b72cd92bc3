"""The rule of a probe worker by itself, without the loop that probes."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.probing._state_py import ProbeState
else:
    from engine._fast.probing._state_c import ProbeState  # type: ignore[assignment]

__all__ = ["ProbeState"]
