"""Converts the node's status of a pod to what the API server gets. Pure.

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
    told = msgspec.structs.replace(
        status,
        observed_generation=generation,
        resource_claim_statuses=server.resource_claim_statuses,
        extended_resource_claim_status=server.extended_resource_claim_status,
    )
    conditions = {c.type: c for c in status.conditions or ()}
    if server.phase in TERMINAL and told.phase != server.phase:
        told.phase, told.reason, told.message = server.phase, server.reason, server.message
    elif told.phase in TERMINAL and may_run:
        told.phase, told.reason, told.message = server.phase, server.reason, server.message
        conditions.pop(DISRUPTION, None)
    known = {c.type: c for c in server.conditions or ()}
    disrupted = conditions.pop(DISRUPTION, None)
    if disrupted is not None:
        known[DISRUPTION] = _disrupted(disrupted, known.get(DISRUPTION), generation, now)
    others = [c for c in known.values() if not is_own_condition(c.type)]
    own = [_of(c, generation) for c in conditions.values() if is_own_condition(c.type)]
    told.conditions = [*others, *own] or None
    told.start_time = server.start_time or told.start_time
    if told.phase in TERMINAL and not may_run:
        _end_containers(told, server)
    return told


def _disrupted(
    condition: PodCondition, known: PodCondition | None, generation: int, now: datetime
) -> PodCondition:
    """Return DisruptionTarget, which is first sent, and starts to hold, when nothing of the pod runs."""
    same = known is not None and known.status == condition.status
    since = known.last_transition_time if known is not None and same else now.replace(microsecond=0)
    return msgspec.structs.replace(_of(condition, generation), last_transition_time=since)


def status_patch(server: PodStatus, told: PodStatus) -> dict[str, Any]:
    """Return the strategic merge patch of the status; empty if the server has it all."""
    return strategic_patch(to_builtins(server), to_builtins(told)) if server != told else {}


def is_ready(status: PodStatus) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in status.conditions or ())


def _of(condition: PodCondition, generation: int) -> PodCondition:
    return msgspec.structs.replace(condition, observed_generation=generation)


def _end_containers(told: PodStatus, server: PodStatus) -> None:
    """End the containers of a finished pod.

    None of them runs or waits, except those whose turn never came: regular containers of a pod that was not
    initialized, and init containers after the last one tried.
    """
    conditions = (*(told.conditions or ()), *(server.conditions or ()))
    if any(c.type == "Initialized" and c.status == "True" for c in conditions):
        told.container_statuses = _ended(told.container_statuses, server.container_statuses) or None
    init = told.init_container_statuses or []
    tried = max((index for index, status in enumerate(init, 1) if _was_tried(status)), default=1)
    ended = _ended(init[:tried], server.init_container_statuses)
    told.init_container_statuses = [*ended, *init[tried:]] or None


def _was_tried(status: ContainerStatus) -> bool:
    return status.state.waiting is None or status.last_state.terminated is not None


def _ended(
    statuses: Sequence[ContainerStatus] | None, known: Sequence[ContainerStatus] | None
) -> list[ContainerStatus]:
    """Return each container as it ended, as the server knew it, or as lost."""
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
