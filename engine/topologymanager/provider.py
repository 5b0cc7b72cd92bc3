"""What the topology manager asks of whoever gives resources with a place: CPUs, memory, devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from engine.api.pod import Container, Pod
from engine.topologymanager.policy import Hint, Hints

UNEXPECTED = "UnexpectedAdmissionError"
SMT_ALIGNMENT = "SMTAlignmentError"
EMPTY_POD_SHARED_POOL = "EmptyPodSharedPoolError"


class AllocationError(Exception):
    """A resource cannot be given. `reason` and `message` are a pod's, in the kubelet's words."""

    def __init__(self, error: str, reason: str = UNEXPECTED) -> None:
        super().__init__(error)
        self.reason = reason
        unexpected = f"Allocate failed due to {error}, which is unexpected"
        self.message = unexpected if reason == UNEXPECTED else error


class HintProvider(Protocol):
    """Gives one kind of resource to the containers of pods. Only `flush` waits."""

    def concerns(self, pod: Pod) -> bool:
        """Whether some container of the pod asks for the resource."""
        ...

    def pod_hints(self, pod: Pod) -> Mapping[str, Hints] | None:
        """Hints for the pod as a whole, by resource; None or empty has no preference."""
        ...

    def container_hints(self, pod: Pod, container: Container) -> Mapping[str, Hints] | None:
        """Hints for one container, given what earlier containers of the pod hold."""
        ...

    def allocate(self, pod: Pod, container: Container, hint: Hint) -> None:
        """Give the container what it asks for, unless it has that. Raises `AllocationError`."""
        ...

    @property
    def pod_uids(self) -> Collection[str]:
        """Pods that have some of the resource."""
        ...

    def release(self, pod_uid: str) -> None:
        """Take back all that the pod has."""
        ...

    def collect(self, keep: Collection[str]) -> None:
        """Take back what pods have whose uid is not in `keep`."""
        ...

    def adopted(self, pod: Pod, choose: Callable[[Pod, Container], Hint]) -> None:
        """Give containers of a pod that already runs what they lack; `choose` asks the topology policy.

        The pod goes on to run whatever comes of it.
        """
        ...

    async def flush(self) -> None:
        """Return when the present state is on disk. Raises `Refused`."""
        ...
