"""Decides when a plugin that refused or did not answer is asked again (kubelet v1.36)."""

from __future__ import annotations

from typing import Final

from engine.api.duration import doubled

FIRST_SECONDS: Final = 0.5
LAST_SECONDS: Final = 122.0


def retry_delay(failures: int) -> float:
    """Return the seconds to wait after so many failures, at least one."""
    return doubled(FIRST_SECONDS, failures, LAST_SECONDS)
