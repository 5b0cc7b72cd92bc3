"""A probe worker's state machine: the compiled form, or its twin when asked."""

from typing import TYPE_CHECKING

from engine._fast._select import PURE

if PURE and not TYPE_CHECKING:
    from engine._fast._probe_state_py import ProbeState
else:
    from engine._fast._probe_state_c import ProbeState

__all__ = ["ProbeState"]
