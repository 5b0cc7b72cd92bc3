"""The states, outcomes and observations of probes, which the loop and its users share, and the rule."""

from engine._fast._select import PURE
from engine._fast.probing._state_py import (
    FAILURE,
    LIVENESS,
    NONE,
    OUTCOME_ERROR,
    OUTCOME_FAILURE,
    OUTCOME_SUCCESS,
    OUTCOME_WARNING,
    READINESS,
    RUNNING,
    STARTUP,
    SUCCESS,
    TERMINATED,
    WAITING,
    ProbeObservation,
)

if PURE:
    from engine._fast.probing._state_py import ProbeState
else:
    from engine._fast.probing._state_c import ProbeState  # type: ignore[assignment]

__all__ = [
    "FAILURE",
    "LIVENESS",
    "NONE",
    "OUTCOME_ERROR",
    "OUTCOME_FAILURE",
    "OUTCOME_SUCCESS",
    "OUTCOME_WARNING",
    "READINESS",
    "RUNNING",
    "STARTUP",
    "SUCCESS",
    "TERMINATED",
    "WAITING",
    "ProbeObservation",
    "ProbeState",
]
