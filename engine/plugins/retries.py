"""Decides when a plugin that refused or did not answer is asked again (kubelet v1.36)."""

from __future__ import annotations

from typing import Final

from engine.api.duration import RetryDelays

RETRIES: Final = RetryDelays(0.5, 122.0)
