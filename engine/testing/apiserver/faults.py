"""Define the faults that a request can meet on demand."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum


class ApiServerFault(StrEnum):
    """List ways to fail. A status code with its reason is a fault too: `server.fail(500)`."""

    DROP = "drop"
    """The connection breaks instead of an answer."""
    RESET = "reset"
    """The request's stream is reset."""
    HANG = "hang"
    """No answer, ever; the connection stays open."""
    LOST = "lost"
    """The request is carried out; the connection breaks instead of the answer."""
    FREEZE = "freeze"
    """From this request on the server neither reads nor writes on the connection."""
    MALFORMED = "malformed"
    """Status 200 and half an object."""
    TRICKLE = "trickle"
    """Status 200 and then a single byte from time to time, without end."""
    ENDLESS = "endless"
    """Status 200 and an object as fast as it is read, without end."""
    GO_AWAY = "go-away"
    """The answer is sent; the connection accepts no further requests."""


@dataclass(slots=True)
class Planned:
    """Plan a fault for the next `times` matching requests, None for all, after `skip` unaffected ones.

    `delay` (seconds) comes first.
    """

    kind: ApiServerFault | int | None
    method: str
    path: re.Pattern[str]
    user: str
    skip: int
    times: int | None
    delay: float
    retry_after: int | None
    reason: str

    def matches(self, method: str, path: str, user: str) -> bool:
        return self.method in ("", method) and self.user in ("", user) and self.path.search(path) is not None


@dataclass(slots=True)
class Faults:
    """Hold the planned faults, in order; the first that matches a request applies."""

    planned: list[Planned] = field(default_factory=list)

    def plan(self, planned: Planned) -> None:
        self.planned.append(planned)

    def clear(self) -> None:
        self.planned.clear()

    def take(self, method: str, path: str, user: str) -> Planned | None:
        for each in self.planned:
            if each.matches(method, path, user):
                if each.skip:
                    each.skip -= 1
                    continue
                if each.times is not None:
                    each.times -= 1
                    if each.times == 0:
                        self.planned.remove(each)
                return each
        return None
