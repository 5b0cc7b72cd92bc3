"""A clock that nobody can set: Unix time at the start, then elapsed time only."""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Seconds like a Unix clock's, read once from `clock` and then advanced by `monotonic`.

    Ages are differences of its readings, so that setting the wall clock neither makes every image old nor
    hides one from the rules. The kubelet gets the same from Go's monotonic readings.
    """

    def __init__(
        self, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._offset = clock() - monotonic()

    def __call__(self) -> float:
        return self._offset + self._monotonic()
