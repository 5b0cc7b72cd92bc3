"""Computes exponential back-off per key, as the kubelet spaces container restarts and image pulls."""

from __future__ import annotations

from typing import Final

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.duration import RetryDelays

FIRST_SECONDS: Final = 10.0
MOST_SECONDS: Final = 300.0
REDUCED_FIRST_SECONDS: Final = 1.0
REDUCED_MOST_SECONDS: Final = 60.0


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


def restart_delays(config: KubeletConfiguration) -> tuple[float, float]:
    """Return the first and the longest delay of a restart, in seconds, as the feature gates and the
    configuration set them.

    With its gate on, `crashLoopBackOff.maxContainerRestartPeriod` has a default, which is the longest delay
    whatever the other gate says (`newCrashLoopBackOff` of kubelet v1.36).
    """
    first, most = FIRST_SECONDS, MOST_SECONDS
    if config.gate("ReduceDefaultCrashLoopBackOffDecay", False):
        first, most = REDUCED_FIRST_SECONDS, REDUCED_MOST_SECONDS
    if config.gate("KubeletCrashLoopBackOffMax", True):
        settings = config.crash_loop_back_off
        given = settings.max_container_restart_period if settings is not None else None
        most = float(given) if given is not None else MOST_SECONDS
    return min(first, most), most


def restart_backoff(config: KubeletConfiguration) -> Backoff:
    """Return the back-off of restarting containers, with the configured delays."""
    return Backoff(*restart_delays(config))
