"""The interface between the topology manager and the managers of resources with a location."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from engine.api.pod import Container, Pod
from engine.topologymanager.policy import Hint, Hints

UNEXPECTED = "UnexpectedAdmissionError"
SMT_ALIGNMENT = "SMTAlignmentError"
EMPTY_POD_SHARED_POOL = "EmptyPodSharedPoolError"


class AllocationError(Exception):
    """Raised if a resource cannot be allocated. `reason` and `message` are for the pod's status, in the
    kubelet's words.
    """

    def __init__(self, error: str, reason: str = UNEXPECTED) -> None:
        super().__init__(error)
        self.reason = reason
        unexpected = f"Allocate failed due to {error}, which is unexpected"
        self.message = unexpected if reason == UNEXPECTED else error


class CannotResize(Exception):
    """Raised if a running pod cannot have other amounts of a resource: not now, or `never` on this node."""

    def __init__(self, message: str, *, never: bool) -> None:
        super().__init__(message)
        self.never = never


class HintProvider(Protocol):
    """Allocate one kind of resource to the containers of pods. Only `flush` waits."""

    def concerns(self, pod: Pod) -> bool:
        """Return whether a container of the pod requests the resource."""
        ...

    def pod_hints(self, pod: Pod) -> Mapping[str, Hints] | None:
        """Return hints for the whole pod, by resource; None or empty means no preference."""
        ...

    def container_hints(self, pod: Pod, container: Container) -> Mapping[str, Hints] | None:
        """Return hints for one container, given the allocations of earlier containers of the pod."""
        ...

    def allocate(self, pod: Pod, container: Container, hint: Hint) -> None:
        """Allocate the container's request, unless it is allocated already. Raises `AllocationError`."""
        ...

    def allocate_pod(self, pod: Pod, hint: Hint) -> None:
        """Allocate the pod's pod-level resources and divide them among its containers.

        Called instead of `allocate` in pod scope, with PodLevelResourceManagers. Raises `AllocationError`.
        """
        ...

    def count_failure(self, pod: Pod, lacking: Collection[str]) -> bool:
        """Count the allocation that failed if the resource is among those that the node lacks for the pod.

        Returns whether it is.
        """
        ...

    @property
    def pod_uids(self) -> Collection[str]:
        """Return the uids of pods with an allocation."""
        ...

    def release(self, pod_uid: str) -> None:
        """Release all allocations of the pod."""
        ...

    def collect(self, keep: Collection[str]) -> None:
        """Release the allocations of pods whose uid is not in `keep`."""
        ...

    def adopted(self, pod: Pod, choose: Callable[[Pod, Container], Hint]) -> None:
        """Allocate what containers of a running pod lack; `choose` asks the topology policy.

        The pod keeps running whatever the result.
        """
        ...

    async def flush(self) -> None:
        """Wait until the current state is on disk. Raises `Refused`."""
        ...
