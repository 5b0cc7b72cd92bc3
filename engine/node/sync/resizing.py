"""Resizes a running pod in place: changed amounts of CPU or memory reach its cgroups and containers.

`engine.cgroups.resize` decides. This module carries out the decision through the cgroup manager and the
runtime, restarts the containers whose resizePolicy requires it, and reports progress as conditions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from engine.api.errors import Refused
from engine.api.events import NORMAL, WARNING
from engine.api.pod import Pod
from engine.api.quantity import ZERO, Quantity
from engine.api.resources import pod_requests
from engine.cgroups.formulas.containers import ContainerResources
from engine.cgroups.resize import decide_resize, in_progress, resize_of, resize_text
from engine.cri.records import ContainerRecord
from engine.node.pod.resize import Resize, ResizeEvent, ResizeState
from engine.node.sync.services import Services
from engine.node.sync.starting import cri_resources
from engine.node.sync.stopping import grace_seconds, stop_container


def can_resize(old: Pod, new: Pod) -> bool:
    """Tell whether two pods differ only in what an in-place resize may change."""
    return resize_of(old, new) is not None


async def carry_out(
    pod: Pod, resize: Resize, services: Services, publish: Callable[[], Awaitable[None]]
) -> Pod | None:
    """Resize the pod if the node has room. Return the resized pod, or None while that is impossible.

    The new amounts count from the decision on, so that no other pod gets the same room. `publish` is called
    when the resize begins. If a step is refused, the next call continues from there.
    """
    wanted = resize.wanted
    if not resize.begun and not _begins(pod, resize, services):
        return None
    services.admission.resized(wanted)
    await publish()
    clock, began = services.context.clock, services.context.clock()
    try:
        await _apply(pod, wanted, services)
    except Refused as error:
        services.metrics.resizes.carried_out(clock() - began, success=False)
        text = str(error)
        failed = in_progress(text)
        if resize.condition != failed:
            services.context.recorder.pod(pod, WARNING, "ResizeError", resize_text("error", wanted, text))
            services.context.decisions.pod(pod, "resize", "failed", text, _inputs(pod, wanted))
        resize.tell(ResizeEvent.FAIL, failed)
        raise
    services.allocations.placement.resized(wanted)
    services.metrics.resizes.carried_out(clock() - began, success=True)
    resize.tell(ResizeEvent.COMPLETE)
    services.context.recorder.pod(pod, NORMAL, "ResizeCompleted", resize_text("completed", wanted))
    services.context.decisions.pod(pod, "resize", "resized", "", _inputs(pod, wanted))
    return wanted


def _begins(pod: Pod, resize: Resize, services: Services) -> bool:
    """Check whether the node has room; report the outcome once while it stays the same."""
    wanted, before = resize.wanted, resize.state
    allocatable, others = services.admission.allocatable(), services.admission.used_beside(pod.uid)
    decision = decide_resize(
        pod,
        wanted,
        allocatable=allocatable,
        others=others,
        config=services.context.config,
    )
    if decision.verdict == "Proceed":
        decision = services.allocations.placement.resize(pod, wanted)
    inputs = {
        **_inputs(pod, wanted),
        "others": _amounts(others),
        "allocatable": _amounts({name: allocatable.get(name, ZERO) for name in others}),
    }
    pending = decision.condition()
    if pending is not None:
        resize.tell(ResizeEvent.DEFER if decision.verdict == "Deferred" else ResizeEvent.REFUSE, pending)
        if resize.state is not before:
            why = f"OutOf{decision.short}" if decision.short else pending.reason
            text = resize_text(why, wanted, pending.message)
            services.context.recorder.pod(pod, WARNING, f"Resize{pending.reason}", text)
            if decision.verdict == "Infeasible":
                services.metrics.resizes.infeasible(decision.detail)
            services.context.decisions.pod(pod, "resize", pending.reason.lower(), pending.message, inputs)
        return False
    if before is ResizeState.DEFERRED:
        services.metrics.resizes.accepted_after_waiting()
    resize.tell(ResizeEvent.BEGIN, in_progress())
    services.context.recorder.pod(pod, NORMAL, "ResizeStarted", resize_text("started", wanted))
    services.context.decisions.pod(pod, "resize", "started", "", inputs)
    return True


def _inputs(pod: Pod, wanted: Pod) -> dict[str, Any]:
    return {"from": _amounts(pod_requests(pod)), "to": _amounts(pod_requests(wanted))}


def _amounts(amounts: Mapping[str, Quantity]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


async def _apply(old: Pod, new: Pod, services: Services) -> None:
    """Apply the new amounts. Containers that restart are stopped first, so that none exceeds its
    smaller pod.
    """
    running = {container.name: container for container in services.runtime.watch.pod(old.uid).may_run}
    resize = resize_of(old, new)
    for change in resize.containers if resize is not None else ():
        if change.restart and change.name in running:
            container = running.pop(change.name)
            text = f"Container {change.name} is restarted to be resized"
            await stop_container(old, container, services, grace_seconds(old, container), text)

    async def update(name: str, values: ContainerResources) -> None:
        container = running.get(name)
        if container is not None:
            services.cgroups.set_burst(new, container.id, 0)
            await services.runtime.client.update_container_resources(container.id, cri_resources(values))
            services.cgroups.set_burst(new, container.id, values.cpu_quota)
            await services.runtime.watch.refresh_container(
                old.uid, container.id, container.sandbox_id, notify=False
            )

    await services.allocations.placement.settle()
    usage = await _memory_usage(list(running.values()), services)
    await _tell_runtime(new, services)
    await services.cgroups.resize_pod(old, new, update, usage)


async def _tell_runtime(new: Pod, services: Services) -> None:
    """The runtime may refuse the pod's new amounts before a cgroup is touched. Raises `Refused` then."""
    sandbox = services.runtime.watch.pod(new.uid).sandbox
    if sandbox is not None:
        overhead = cri_resources(services.cgroups.overhead_resources(new))
        resources = cri_resources(services.cgroups.sandbox_resources(new))
        await services.runtime.client.update_pod_sandbox_resources(sandbox.id, overhead, resources)


async def _memory_usage(containers: list[ContainerRecord], services: Services) -> dict[str, int]:
    """Return the memory in use in bytes by container name, for containers that the runtime can measure."""
    usage = {}
    for container in containers:
        with contextlib.suppress(Refused):
            stats = await services.runtime.client.container_stats(container.id)
            usage[container.name] = stats.memory.usage_bytes.value or stats.memory.working_set_bytes.value
    return usage
