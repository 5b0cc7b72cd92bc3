"""Converts the node's status of a pod to the status to send to the API server. Pure.

Facts of kubelet v1.36 (`pkg/kubelet/status`): conditions of others stay as the server has them; the node's
own carry the generation that they reflect, except for static pods; a terminal phase is final and is not sent
while something of the pod may run; a container whose end is unknown gets `ContainerStatusUnknown`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from engine.api.meta import ObjectMeta
from engine.api.qos import MIRROR_ANNOTATION
from engine.api.status import (
    ContainerState,
    ContainerStatus,
    PodCondition,
    PodStatus,
    is_own_condition,
    lost_end,
)
from engine.api.struct import to_builtins
from engine.cluster.merge import strategic_patch

TERMINAL = ("Succeeded", "Failed")
DISRUPTION = "DisruptionTarget"


def status_to_send(
    status: PodStatus, server: PodStatus, meta: ObjectMeta, *, may_run: bool, now: datetime
) -> PodStatus:
    """Return the status to send.

    `status` is the node's, `server` the API's; `meta` is the API's metadata; `may_run` tells whether
    something of the pod runs or will run. The generation is filled in.
    """
    generation = status.observed_generation if may_run else meta.generation
    if MIRROR_ANNOTATION in (meta.annotations or {}):
        generation = 0
    sent = msgspec.structs.replace(
        status,
        observed_generation=generation,
        resource_claim_statuses=server.resource_claim_statuses,
        extended_resource_claim_status=server.extended_resource_claim_status,
    )
    conditions = {c.type: c for c in status.conditions or ()}
    if server.phase in TERMINAL and sent.phase != server.phase:
        sent.phase, sent.reason, sent.message = server.phase, server.reason, server.message
    elif sent.phase in TERMINAL and may_run:
        sent.phase, sent.reason, sent.message = server.phase, server.reason, server.message
        conditions.pop(DISRUPTION, None)
    known = {c.type: c for c in server.conditions or ()}
    disrupted = conditions.pop(DISRUPTION, None)
    if disrupted is not None:
        known[DISRUPTION] = _disrupted(disrupted, known.get(DISRUPTION), generation, now)
    others = [c for c in known.values() if not is_own_condition(c.type)]
    own = [_of(c, generation) for c in conditions.values() if is_own_condition(c.type)]
    sent.conditions = [*others, *own] or None
    sent.start_time = server.start_time or sent.start_time
    if sent.phase in TERMINAL and not may_run:
        _end_containers(sent, server)
    return sent


def _disrupted(
    condition: PodCondition, known: PodCondition | None, generation: int, now: datetime
) -> PodCondition:
    """Return the condition DisruptionTarget with the time `now`: it is first sent when nothing of the pod
    runs.
    """
    same = known is not None and known.status == condition.status
    since = known.last_transition_time if known is not None and same else now.replace(microsecond=0)
    return msgspec.structs.replace(_of(condition, generation), last_transition_time=since)


def status_patch(server: PodStatus, sent: PodStatus) -> dict[str, Any]:
    """Return the strategic merge patch from the server's status to the one to send; empty if they are
    equal.
    """
    return strategic_patch(to_builtins(server), to_builtins(sent)) if server != sent else {}


def is_ready(status: PodStatus) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in status.conditions or ())


def _of(condition: PodCondition, generation: int) -> PodCondition:
    return msgspec.structs.replace(condition, observed_generation=generation)


def _end_containers(sent: PodStatus, server: PodStatus) -> None:
    """Set the containers of a finished pod to terminated.

    Containers that were never tried stay as they are: regular containers of a pod that was not initialized,
    and init containers after the last one that was started.
    """
    conditions = (*(sent.conditions or ()), *(server.conditions or ()))
    if any(c.type == "Initialized" and c.status == "True" for c in conditions):
        sent.container_statuses = _ended(sent.container_statuses, server.container_statuses) or None
    init = sent.init_container_statuses or []
    tried = max((index for index, status in enumerate(init, 1) if _was_tried(status)), default=1)
    ended = _ended(init[:tried], server.init_container_statuses)
    sent.init_container_statuses = [*ended, *init[tried:]] or None


def _was_tried(status: ContainerStatus) -> bool:
    return status.state.waiting is None or status.last_state.terminated is not None


def _ended(
    statuses: Sequence[ContainerStatus] | None, known: Sequence[ContainerStatus] | None
) -> list[ContainerStatus]:
    """Return terminated statuses: the container's own, the server's, or `ContainerStatusUnknown`."""
    before = {status.name: status for status in known or ()}
    return [
        status if status.state.terminated is not None else _lost(status, before.get(status.name))
        for status in statuses or ()
    ]


def _lost(status: ContainerStatus, before: ContainerStatus | None) -> ContainerStatus:
    if before is not None and before.state.terminated is not None:
        return before
    end = status.last_state.terminated if status.state.waiting is not None else None
    state = ContainerState(terminated=end or lost_end())
    return msgspec.structs.replace(status, state=state, ready=False, started=False)
