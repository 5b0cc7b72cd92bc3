"""Defines a pod's life on the node: named states, one table of transitions, and what its worker keeps. Pure.

    ADMITTING ──admit──▸ WORKING ──finish──▸ FINISHED
      │  ▴ │                │
      │  │ └──────fail──────┴─▸ FAILING ──stopped──▸ FAILED
    reject retry
      ▾  │
    REJECTED                 (any of them) ──remove──▸ LEAVING ──stopped──▸ CLEANING_UP ──freed──┐
                                                     REMOVED ◂──removed── REMOVING ◂──known── REPORTING

A second REMOVE changes nothing but the grace period, which only shrinks. The last status of a stopped pod
is computed from what the runtime still holds of it, so that is removed only once the pod's source knows the
status (REPORTING).

The owner of a `PodLife` reports events to it and carries out the returned actions in their order. A pod
holds its resources (amounts, ports, devices) until `RELEASE`, which follows only when nothing of it runs. An
end is final: no event leads from FINISHED or FAILED back to WORKING.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from engine.api.errors import Bug
from engine.api.lifecycle import PodEnd
from engine.api.pod import Pod
from engine.api.status import ContainerStateWaiting
from engine.node.pod.resize import Resize


class LifeState(Enum):
    """Name the state of a pod, which determines the work to do for it."""

    __hash__ = object.__hash__  # members are single; `Enum` hashes the name with a call of Python's

    ADMITTING = "is in admission, or waits for others to release resources"
    REJECTED = "does not fit the node as it is"
    WORKING = "runs, or is being started"
    FINISHED = "has ended by itself"
    FAILING = "is being stopped for good by the node"
    FAILED = "was stopped for good by the node"
    LEAVING = "is no longer desired and is being stopped"
    CLEANING_UP = "has stopped, and its cgroup and volumes are being removed"
    REPORTING = "holds nothing of the node; its source has not acknowledged its end"
    REMOVING = "has an acknowledged end, and its remains are being removed"
    REMOVED = "has been removed completely"


class LifeEvent(Enum):
    ADMIT = "it fits, and what it waited for has happened"
    REJECT = "it does not fit"
    RETRY = "something changed on the node that may let it fit"
    FINISH = "its containers have ended for good"
    FAIL = "the node ends it: evicted, preempted, past its deadline"
    REMOVE = "no source desires it any longer"
    STOPPED = "nothing of it runs"
    FREED = "its cgroup and volumes no longer exist"
    KNOWN = "its source knows its last status, or has no such pod"
    REMOVED = "nothing of it is left"


class Action(Enum):
    """Name an action that is due at once; the state implies the longer work."""

    INTERRUPT = "stop doing what is being done for it"
    LEAVE = "admit other pods without counting it"
    RELEASE = "release its resources"
    SHORTEN_GRACE = "if it is being stopped, stop it within the grace that is left now"


S, E, A = LifeState, LifeEvent, Action

TRANSITIONS: Final[dict[tuple[LifeState, LifeEvent], tuple[LifeState, tuple[Action, ...]]]] = {
    (S.ADMITTING, E.ADMIT): (S.WORKING, ()),
    (S.ADMITTING, E.REJECT): (S.REJECTED, ()),
    (S.REJECTED, E.RETRY): (S.ADMITTING, ()),
    (S.WORKING, E.FINISH): (S.FINISHED, (A.RELEASE,)),
    (S.ADMITTING, E.FAIL): (S.FAILING, (A.INTERRUPT, A.LEAVE)),
    (S.WORKING, E.FAIL): (S.FAILING, (A.INTERRUPT, A.LEAVE)),
    (S.FAILING, E.STOPPED): (S.FAILED, (A.RELEASE,)),
    **{
        (state, E.REMOVE): (S.LEAVING, (A.INTERRUPT, A.LEAVE))
        for state in (S.ADMITTING, S.REJECTED, S.WORKING, S.FINISHED, S.FAILING, S.FAILED)
    },
    (S.LEAVING, E.STOPPED): (S.CLEANING_UP, (A.RELEASE,)),
    (S.CLEANING_UP, E.FREED): (S.REPORTING, ()),
    (S.REPORTING, E.KNOWN): (S.REMOVING, ()),
    (S.REMOVING, E.REMOVED): (S.REMOVED, ()),
}

UNWANTED: Final = frozenset({S.LEAVING, S.CLEANING_UP, S.REPORTING, S.REMOVING, S.REMOVED})

IGNORED: Final = frozenset(
    {(state, E.FAIL) for state in S if (state, E.FAIL) not in TRANSITIONS}
    | {(state, E.RETRY) for state in S if state is not S.REJECTED}
    | {(state, E.REMOVE) for state in UNWANTED}
)
"""Events that may come too late and change nothing."""

HOLDING: Final = frozenset({S.ADMITTING, S.WORKING, S.FAILING, S.LEAVING})
"""States in which a pod may run, and so holds its resources."""

OVER: Final = frozenset(S) - HOLDING
"""States in which nothing of a pod runs, nor will without another event."""

STOPPING: Final = frozenset({S.FAILING, S.LEAVING})


class PodLife:
    """Hold the state of one pod, and the first reason for its end."""

    def __init__(self, state: LifeState = LifeState.ADMITTING, end: PodEnd | None = None) -> None:
        self.state = state
        self.end = end
        self.grace: int | None = None
        """Seconds that its sources give it to stop; None for its own grace period."""

    def handle(
        self, event: LifeEvent, end: PodEnd | None = None, grace: int | None = None
    ) -> tuple[Action, ...]:
        """Move to the next state and return the actions that are due now.

        `end` comes with FAIL and REJECT; `grace`, in seconds, may come with REMOVE. Raises `Bug` for an event
        that cannot happen in this state.
        """
        # Every deletion may shorten the grace period, none lengthens it (as the API server's own rule).
        shorter = grace is not None and (self.grace is None or grace < self.grace)
        shorten_grace = (Action.SHORTEN_GRACE,) if shorter and self.state in STOPPING else ()
        if shorter:
            self.grace = grace
        return (*self._move(event, end), *shorten_grace)

    def _move(self, event: LifeEvent, end: PodEnd | None) -> tuple[Action, ...]:
        if (self.state, event) in IGNORED:
            return ()
        if (self.state, event) not in TRANSITIONS:
            raise Bug(f"{event.name} while {self.state.name}", subject="pod life")
        self.state, actions = TRANSITIONS[self.state, event]
        if event in (LifeEvent.FAIL, LifeEvent.REJECT):
            self.end = end
        elif event is LifeEvent.ADMIT:
            self.end = None
        self.validate()
        return actions

    @property
    def holds(self) -> bool:
        """Tell whether something of the pod may run."""
        return self.state in HOLDING

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def final(self) -> bool:
        """Tell whether the pod has ended for good, so that its status no longer changes."""
        return self.state in (LifeState.FINISHED, LifeState.FAILED)

    @property
    def wanted(self) -> bool:
        """Tell whether a source still wants the pod."""
        return self.state not in UNWANTED

    @property
    def stopped(self) -> bool:
        """Tell whether the node or the pod's source has ended it, and nothing of it runs."""
        return self.state is LifeState.FAILED or (self.over and not self.wanted)

    @property
    def given_grace(self) -> int | None:
        """Return the seconds that each container has to stop; None for the grace period of its own."""
        limits = (self.end.grace_period_seconds if self.end is not None else None, self.grace)
        return min((limit for limit in limits if limit is not None), default=None)

    def validate(self) -> None:
        """Raise `Bug` if an attribute contradicts the state."""
        if self.grace is not None and self.wanted:
            raise Bug(f"{self.state.name} and asked to terminate", subject="pod life")
        needs_end = self.state in (LifeState.REJECTED, LifeState.FAILING, LifeState.FAILED)
        if needs_end and self.end is None:
            raise Bug(f"{self.state.name} without a reason", subject="pod life")
        if self.state in (LifeState.WORKING, LifeState.FINISHED) and self.end is not None:
            raise Bug(f"{self.state.name} and ended for {self.end.reason}", subject="pod life")


class Waiting(msgspec.Struct, frozen=True):
    """Hold the reason why a container does not run, or its pod is not admitted, as the worker last found."""

    reason: str
    message: str = ""

    def state(self) -> ContainerStateWaiting:
        return ContainerStateWaiting(reason=self.reason, message=self.message)


class PodState(msgspec.Struct):
    """Hold the state of one pod; `pod.status` is the status that was published last.

    `started_at` is a Unix time; `waiting_reason` is why the pod is not admitted yet. By container name:
    `waiting` is why a container does not run, `restarts` counts the runs of containers that were removed
    because the pod starts again, and `past` counts runs of containers that were removed together with an
    earlier instance of the pod. `messages` are the termination messages by container id; `final_published`
    tells whether the published status is the pod's last one.
    """

    pod: Pod
    life: PodLife
    started_at: float
    resize: Resize | None = None
    waiting_reason: Waiting | None = None
    waiting: dict[str, Waiting] = msgspec.field(default_factory=dict)
    restarts: dict[str, int] = msgspec.field(default_factory=dict)
    past: dict[str, int] = msgspec.field(default_factory=dict)
    messages: dict[str, str] = msgspec.field(default_factory=dict)
    restarting: frozenset[str] = frozenset()
    """Ids of containers that a resize has stopped and that have to start again, whatever their policy."""
    final_published: bool = False

    @property
    def wanted(self) -> Pod:
        """Return the pod as its source wants it; it differs from `pod` while a resize waits."""
        return self.resize.wanted if self.resize is not None else self.pod
