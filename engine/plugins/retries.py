"""When what a plugin refused, or did not answer, is asked of it again (kubelet v1.36)."""

from __future__ import annotations

from typing import Final

from engine.api.duration import doubled

FIRST_SECONDS: Final = 0.5
LAST_SECONDS: Final = 122.0


def retry_delay(failures: int) -> float:
    """Seconds to wait after so many failures, one at least."""
    return doubled(FIRST_SECONDS, failures, LAST_SECONDS)
