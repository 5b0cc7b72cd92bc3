"""Defines the resize of a running pod: named states and one table of transitions. Pure.

    PROPOSED ──defer──▸ DEFERRED ──refuse──▸ INFEASIBLE
       │                  │ ◂─────defer─────── │
       └──────begin───────┴────────begin───────┴─▸ RESIZING ──complete──▸ DONE
                                                     │ fail               ▴
                                                     ▾                    │
                                                   FAILED ────complete────┘

A resize that has begun counts with its new amounts, and is continued without another decision. Only a pod in
the state WORKING is resized; its life cycle (`life`) continues independently.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from engine.api.errors import Bug
from engine.api.pod import Pod
from engine.api.status import PodCondition
from engine.cgroups.resize import DEFERRED, FAILED, IN_PROGRESS, INFEASIBLE, PENDING


class ResizeState(Enum):
    PROPOSED = "is requested, and was not evaluated yet"
    DEFERRED = "waits until the node has the resources"
    INFEASIBLE = "exceeds what this node can ever give"
    RESIZING = "is granted, and is being applied to cgroups and containers"
    FAILED = "is granted; a step failed and is retried"
    DONE = "is applied"


class ResizeEvent(Enum):
    DEFER = "the node lacks the resources now"
    REFUSE = "the node can never have the resources"
    BEGIN = "the node has the resources"
    FAIL = "the runtime or the kernel refused a step"
    COMPLETE = "cgroups and containers have the new amounts"


S, E = ResizeState, ResizeEvent

JUDGED: Final = (S.PROPOSED, S.DEFERRED, S.INFEASIBLE)

TRANSITIONS: Final[dict[tuple[ResizeState, ResizeEvent], ResizeState]] = {
    **{(state, E.DEFER): S.DEFERRED for state in JUDGED},
    **{(state, E.REFUSE): S.INFEASIBLE for state in JUDGED},
    **{(state, E.BEGIN): S.RESIZING for state in JUDGED},
    (S.RESIZING, E.FAIL): S.FAILED,
    (S.FAILED, E.FAIL): S.FAILED,
    (S.RESIZING, E.COMPLETE): S.DONE,
    (S.FAILED, E.COMPLETE): S.DONE,
}

CONDITIONS: Final = {
    S.DEFERRED: (PENDING, DEFERRED),
    S.INFEASIBLE: (PENDING, INFEASIBLE),
    S.RESIZING: (IN_PROGRESS, ""),
    S.FAILED: (IN_PROGRESS, FAILED),
}
"""Type and reason of the condition that a state shows; the remaining states show none."""


class Resize:
    """Hold a resize that a pod's source asks for: `wanted` is the pod with its new amounts, `stopped` are the
    ids of the containers that it has stopped, which start again with them.
    """

    def __init__(self, wanted: Pod) -> None:
        self.wanted = wanted
        self.state = ResizeState.PROPOSED
        self.condition: PodCondition | None = None
        self.stopped: set[str] = set()

    def handle(self, event: ResizeEvent, condition: PodCondition | None = None) -> None:
        """Move to the next state, which shows `condition`. Raises `Bug` for an event that cannot
        happen now.
        """
        if (self.state, event) not in TRANSITIONS:
            raise Bug(f"{event.name} while {self.state.name}", subject="pod resize")
        self.state, self.condition = TRANSITIONS[self.state, event], condition
        self.validate()

    @property
    def begun(self) -> bool:
        """Tell whether the new amounts count."""
        return self.state not in JUDGED

    @property
    def waiting(self) -> bool:
        """Tell whether the resize waits until the node has more free resources."""
        return self.state is ResizeState.DEFERRED

    def validate(self) -> None:
        """Raise `Bug` if the condition is not the one of the state."""
        shown = (self.condition.type, self.condition.reason) if self.condition is not None else None
        if shown != CONDITIONS.get(self.state):
            raise Bug(f"{self.state.name} says {shown}", subject="pod resize")
