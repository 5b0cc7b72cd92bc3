"""What a manager could not keep of an earlier agent's state file, and what it says about that."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from engine.api.decisions import Decisions
from engine.api.events import NORMAL, WARNING, EventRecorder
from engine.api.pod import Pod

EVENTS: Final = {
    "cpus": ("CPUManagerStateChanged", "CPUsReassigned"),
    "memory": ("MemoryManagerStateChanged", "MemoryReassigned"),
}
"""By kind of decision: the node's event, and the pods'."""


class LostAllocation(Protocol):
    """Describe what a container had, and cannot keep."""

    @property
    def pod_uid(self) -> str: ...

    @property
    def container(self) -> str: ...


L = TypeVar("L", bound=LostAllocation)


class LostAllocations(Generic[L]):
    """Hold the lost allocations of pods that have not appeared yet, and the pods that have."""

    def __init__(
        self, kind: Literal["cpus", "memory"], recorder: EventRecorder, decisions: Decisions
    ) -> None:
        self._kind: Literal["cpus", "memory"] = kind
        self._log = logging.getLogger(f"kubengine.{kind}")
        self._recorder = recorder
        self._decisions = decisions
        self._lost: dict[str, list[L]] = {}
        self._adopted: set[str] = set()

    def state_changed(self, said: str) -> None:
        """Report, for the node, that its state is not that of the file."""
        self._log.warning("%s", said)
        self._recorder.node(WARNING, EVENTS[self._kind][0], said)

    def restored(self, changes: Iterable[str], lost: Mapping[str, L]) -> None:
        """Report changes, and keep what was lost, by its description, until the pods appear."""
        for one in lost.values():
            self._lost.setdefault(one.pod_uid, []).append(one)
        said = "; ".join([*changes, *lost])
        if said:
            self.state_changed(said)

    @property
    def pod_uids(self) -> Collection[str]:
        """Return the uids of pods with lost allocations."""
        return list(self._lost)

    def adopt(self, pod_uid: str) -> dict[str, L] | None:
        """Return what a running pod has lost, by container; None if it has been asked for before."""
        # Once: each sync of a running pod asks again, and would report the same loss.
        if pod_uid in self._adopted:
            return None
        self._adopted.add(pod_uid)
        return {one.container: one for one in self._lost.pop(pod_uid, ())}

    def adopt_again(self, pod_uid: str) -> None:
        """Let `adopt` answer once more, after the machine has changed."""
        self._adopted.discard(pod_uid)

    def forget(self, pod_uid: str) -> None:
        """Forget a pod that is over."""
        self._lost.pop(pod_uid, None)
        self._adopted.discard(pod_uid)

    def reassigned(
        self, pod: Pod, container: str, text: str, why: str, inputs: Mapping[str, Any], *, found: bool
    ) -> None:
        """Report what a running container, or the pod without a name, has instead of what it lost.

        `found` tells whether it has anything.
        """
        subject = f"Container {container}" if container else "The pod"
        kind = NORMAL if found else WARNING
        message = f"{subject} {text}{why}"
        self._recorder.pod(pod, kind, EVENTS[self._kind][1], message, container=container)
        self._decisions.pod(pod, self._kind, "reassigned", text, inputs, container=container)
