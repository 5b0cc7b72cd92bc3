"""Computes the status of a container that the runtime does not hold: not created yet, or removed.

Somebody may remove containers without the agent. What the pod's status knew about such a container stays: a
container that ran has ended, and a pod that ran does not return to Pending.
"""

from __future__ import annotations

import msgspec

from engine.api.pod import Pod
from engine.api.status import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    lost_end,
)

_INITIALIZED = (
    "Unable to get init container status from container runtime and pod has been initialized, "
    "treat it as exited normally"
)


def status_of_unseen(
    pod: Pod, blank: ContainerStatus, why: ContainerStateWaiting | None, *, past: bool
) -> ContainerStatus:
    """Fill in `blank` with what `pod.status` says about the container.

    `why` is the reason why it has not started, if the node tried. `past` is true if the pod has reached the
    containers after it, so that it will not be started again.
    """
    known = _known(pod, blank.name) or blank
    ended = known.state.terminated
    if ended is not None and why is None:
        return known
    blank.restart_count = known.restart_count
    blank.last_state = ContainerState(terminated=ended) if ended is not None else known.last_state
    if why is None and past:
        blank.state = ContainerState(terminated=_treated_as_done())
        blank.ready = True
        return blank
    if why is None and known.state.running is not None:
        if blank.last_state.terminated is None:
            blank.last_state = ContainerState(terminated=lost_end())
        if pod.metadata.deletion_timestamp is None:
            blank.restart_count += 1
    not_yet = "PodInitializing" if pod.init_containers else "ContainerCreating"
    blank.state = ContainerState(waiting=why or ContainerStateWaiting(reason=not_yet))
    return blank


def known_last_end(pod: Pod, name: str, container_id: str) -> ContainerStateTerminated | None:
    """Return how the container before `container_id` ended, as `pod.status` says; None if it says nothing.

    The runtime may not hold that container any longer: only the newest dead ones are kept.
    """
    known = _known(pod, name)
    if known is None:
        return None
    for ended in (known.state.terminated, known.last_state.terminated):
        if ended is not None and ended.container_id != container_id:
            return ended
    return None


def _known(pod: Pod, name: str) -> ContainerStatus | None:
    status = pod.status
    all_known = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    known: ContainerStatus | None = next((each for each in all_known if each.name == name), None)
    return known and msgspec.structs.replace(known)


def _treated_as_done() -> ContainerStateTerminated:
    return ContainerStateTerminated(exit_code=0, reason="Completed", message=_INITIALIZED)
