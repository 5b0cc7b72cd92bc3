"""The states, outcomes and observations of probes, which the loop and its users share."""

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
]
