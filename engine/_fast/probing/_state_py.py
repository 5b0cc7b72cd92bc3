"""State the rule of a probe worker (kubelet v1.32, `prober`).

A tick examines what is known of the pod and its container; the first matching row of `RULES` decides what is
published and whether to probe, wait or end. An outcome lengthens or breaks the run of equal results, and a
run that reaches its threshold publishes.

Easy to get wrong: a new container resets the hold but not the run; unknown counts as failure and warning as
success; after three errors in one tick the outcome is dropped and the run kept; a container that is not
running publishes failure immediately, whatever the thresholds, unless the worker is on hold.
"""

from __future__ import annotations

from typing import NamedTuple

LIVENESS, READINESS, STARTUP = range(3)
NONE, SUCCESS, FAILURE, UNKNOWN = range(4)
OUTCOME_SUCCESS, OUTCOME_FAILURE, OUTCOME_WARNING, OUTCOME_UNKNOWN, OUTCOME_ERROR = range(5)
WAIT, PROBE, END = range(3)
WAITING, RUNNING, TERMINATED = range(3)
RETRY, DROPPED, COUNTED = range(3)

ATTEMPTS = 3
INITIAL = {LIVENESS: SUCCESS, READINESS: FAILURE, STARTUP: UNKNOWN}
"""A container's result before its first probe."""


class ProbeObservation(NamedTuple):
    """Hold what is known at a tick.

    `container` is a number that identifies one incarnation of the container (0: no status, or one without an
    id); `state` is WAITING, RUNNING or TERMINATED; times are Unix milliseconds.
    """

    pod_known: bool = True
    phase_terminal: bool = False
    container: int = 0
    state: int = WAITING
    started: bool = False
    started_at_ms: int = 0
    deleted: bool = False


class Rule(NamedTuple):
    """State what happens if `facts` all hold: publish, then act. `adopts` False leaves an unknown container
    unknown.
    """

    facts: dict[str, bool]
    publishes: int
    action: int
    adopts: bool = True


RULES = (
    Rule({"known": False}, NONE, WAIT, adopts=False),
    Rule({"terminal": True}, NONE, END, adopts=False),
    Rule({"container": False}, NONE, WAIT, adopts=False),
    Rule({"held": True}, NONE, WAIT),
    Rule({"terminated": True, "never_restarts": True}, FAILURE, END),
    Rule({"running": False}, FAILURE, WAIT),
    Rule({"deleted": True, "readiness": False}, SUCCESS, END),
    Rule({"delayed": True}, NONE, WAIT),
    Rule({"started": True, "startup": True}, NONE, WAIT),
    Rule({"started": False, "startup": False}, NONE, WAIT),
    Rule({}, NONE, PROBE),
)


class ProbeState:
    """Track one probe of one container; see the module for the rule.

    `never_restarts` means that nothing restarts the container once it has ended.
    """

    def __init__(
        self,
        type: int,
        *,
        failure_threshold: int = 3,
        success_threshold: int = 1,
        initial_delay_ms: int = 0,
        never_restarts: bool = False,
    ) -> None:
        self.type = type
        self.failure_threshold = failure_threshold
        self.success_threshold = success_threshold
        self.initial_delay_ms = initial_delay_ms
        self.never_restarts = never_restarts
        self.container = 0
        self.published = NONE
        self.on_hold = False
        self.last = NONE
        self.run = 0
        self.attempt = 0
        self.succeeded = False

    def tick(self, seen: ProbeObservation, now_ms: int, initial: int = NONE) -> tuple[int, list[int]]:
        """Return the action and the results published, in order; `initial` replaces the type's own."""
        facts = self._facts(seen, now_ms)
        rule = next(r for r in RULES if all(facts[name] is wanted for name, wanted in r.facts.items()))
        updates: list[int] = []
        if rule.adopts and self.container != seen.container:
            self.container = seen.container
            self.published = NONE
            self.on_hold = self.succeeded = False
            self._publish(initial or INITIAL[self.type], updates)
        if rule.publishes != NONE:
            self._publish(rule.publishes, updates)
        self.attempt = 0
        return rule.action, updates

    def finish(self, outcome: int) -> tuple[int, list[int]]:
        """Process one attempt's outcome: return whether it counted, is to be retried or dropped,
        and updates.
        """
        self.attempt += 1
        if outcome == OUTCOME_ERROR:
            return (RETRY if self.attempt < ATTEMPTS else DROPPED), []
        result = SUCCESS if outcome in (OUTCOME_SUCCESS, OUTCOME_WARNING) else FAILURE
        self.run = self.run + 1 if self.last == result else 1
        self.last = result
        updates: list[int] = []
        if self.run >= (self.failure_threshold if result == FAILURE else self.success_threshold):
            self._publish(result, updates)
            if self.type == STARTUP or (self.type == LIVENESS and result == FAILURE):
                self.on_hold = True
                self.run = 0
        return COUNTED, updates

    def is_starting(self, seen: ProbeObservation) -> bool:
        """Tell whether a running container's first success is awaited, for it to be started or ready."""
        if self.type == LIVENESS or (self.type == STARTUP) == bool(seen.started):
            return False
        if not seen.container or seen.state != RUNNING or seen.deleted or seen.phase_terminal:
            return False
        return self.container != seen.container or not (self.succeeded or self.on_hold)

    def _facts(self, seen: ProbeObservation, now_ms: int) -> dict[str, bool]:
        running_ms = now_ms - seen.started_at_ms
        if -1000 < running_ms < 0:
            running_ms = 0
        return {
            "known": bool(seen.pod_known),
            "terminal": bool(seen.phase_terminal),
            "container": seen.container != 0,
            "held": self.on_hold and self.container == seen.container,
            "running": seen.state == RUNNING,
            "terminated": seen.state == TERMINATED,
            "never_restarts": self.never_restarts,
            "deleted": bool(seen.deleted),
            "delayed": running_ms < self.initial_delay_ms,
            "started": bool(seen.started),
            "readiness": self.type == READINESS,
            "startup": self.type == STARTUP,
        }

    def _publish(self, result: int, updates: list[int]) -> None:
        if self.published != result:
            self.published = result
            self.succeeded = self.succeeded or result == SUCCESS
            updates.append(result)
