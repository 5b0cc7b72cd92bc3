"""Serves the agent's recent decisions, and follows new ones."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from typing import Any

from engine.api.decisions import Decision, Decisions
from engine.api.errors import InvalidInput
from engine.api.query import is_set
from engine.api.struct import to_json


class DecisionsEndpoint:
    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def describe(
        self, pod: str = "", since: str = "", follow: str = "false"
    ) -> dict[str, Any] | AsyncGenerator[bytes, None]:
        """Return the decisions in memory, oldest first; with `follow=true` as JSON lines, continued until the
        client leaves.

        `pod` is `namespace/name` (a bare name means namespace `default`) or a uid; `since` is a Unix time.
        """
        wanted = _filter(pod, since)
        if is_set({"follow": follow}, "follow", "decisions"):
            return self._follow(wanted)
        return {"decisions": [each for each in self._decisions.after(0) if wanted(each)]}

    async def _follow(self, wanted: Callable[[Decision], bool]) -> AsyncGenerator[bytes, None]:
        seen = 0
        while True:
            news = await self._decisions.news(seen)
            # Also of decisions that the reader does not want, or it would be woken by them again.
            seen = news[-1].number
            lines = b"".join(to_json(each) + b"\n" for each in news if wanted(each))
            if lines:
                yield lines


def _filter(pod: str, since: str) -> Callable[[Decision], bool]:
    name = pod if "/" in pod else f"default/{pod}"
    try:
        earliest = float(since or "-inf")
    except ValueError:
        earliest = math.nan
    if math.isnan(earliest):
        raise InvalidInput(f"expected a Unix time in seconds, got {since!r}", subject="decisions: since")
    return lambda each: each.time >= earliest and (not pod or each.pod == name or each.uid == pod)
