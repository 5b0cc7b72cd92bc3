"""Computes exponential back-off per key, as the kubelet spaces container restarts and image pulls."""

from __future__ import annotations

from typing import Final

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.duration import RetryDelays

FIRST_SECONDS: Final = 10.0
MOST_SECONDS: Final = 300.0


class _Entry(msgspec.Struct):
    failures: int
    last: float


class Backoff:
    """Delay `first` seconds, doubling up to `most`; reset after `2 * most` seconds without an attempt."""

    def __init__(self, first: float = FIRST_SECONDS, most: float = MOST_SECONDS) -> None:
        self._delays = RetryDelays(min(first, most), most)
        self._entries: dict[str, _Entry] = {}

    def remaining(self, key: str, since: float, now: float) -> float:
        """Return the seconds until the next attempt after a failure at `since`; 0 means now."""
        entry = self._entries.get(key)
        if entry is None or since - entry.last > 2 * self._delays.most:
            return 0.0
        return max(0.0, since + self._delays.after(entry.failures) - now)

    def delay(self, key: str) -> float:
        """Return the current delay, for messages."""
        entry = self._entries.get(key)
        return self._delays.after(entry.failures) if entry is not None else 0.0

    def attempt(self, key: str, since: float, now: float) -> None:
        """Count an attempt after a failure at `since`."""
        entry = self._entries.get(key)
        if entry is None or since - entry.last > 2 * self._delays.most:
            self._entries[key] = _Entry(1, now)
        else:
            entry.failures += 1
            entry.last = now

    def entries(self) -> dict[str, tuple[int, float]]:
        """Return the failures by key, each with the time of the last attempt."""
        return {key: (entry.failures, entry.last) for key, entry in self._entries.items()}

    def restore(self, key: str, failures: int, last: float) -> None:
        """Set what `entries` returned."""
        self._entries[key] = _Entry(failures, last)

    def reset(self, key: str) -> None:
        """Forget the failures of one key."""
        self._entries.pop(key, None)

    def forget(self, prefix: str) -> None:
        """Forget all keys that start with `prefix`."""
        for key in [key for key in self._entries if key.startswith(prefix)]:
            del self._entries[key]


def longest_restart_delay(config: KubeletConfiguration) -> float:
    """Return the seconds after which the delay of a restart no longer grows."""
    settings = config.crash_loop_back_off
    if settings is not None and settings.max_container_restart_period is not None:
        return float(settings.max_container_restart_period)
    return MOST_SECONDS


def restart_backoff(config: KubeletConfiguration) -> Backoff:
    """Return the back-off of restarting containers, with the configured longest delay."""
    return Backoff(most=longest_restart_delay(config))
