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
from engine.host.node_context import NodeContext
from engine.node.pod.resize import Resize, ResizeEvent, ResizeState
from engine.node.sync.container_config import cri_resources
from engine.node.sync.resize_metrics import ResizeMetrics
from engine.node.sync.services import Allocations, ResourceAccounting, RuntimeServices
from engine.node.sync.stopping import PodStopper, grace_seconds


def can_resize(old: Pod, new: Pod) -> bool:
    """Tell whether two pods differ only in what an in-place resize may change."""
    return resize_of(old, new) is not None


def _inputs(pod: Pod, wanted: Pod) -> dict[str, Any]:
    return {"from": _amounts(pod_requests(pod)), "to": _amounts(pod_requests(wanted))}


def _amounts(amounts: Mapping[str, Quantity]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


class PodResizer:
    """Carry out the resizes of a node's pods."""

    def __init__(
        self,
        context: NodeContext,
        runtime: RuntimeServices,
        allocations: Allocations,
        admission: ResourceAccounting,
        stopper: PodStopper,
        metrics: ResizeMetrics,
    ) -> None:
        self._context = context
        self._runtime = runtime
        self._allocations = allocations
        self._admission = admission
        self._stopper = stopper
        self._metrics = metrics

    async def carry_out(self, pod: Pod, resize: Resize, publish: Callable[[], Awaitable[None]]) -> Pod | None:
        """Resize the pod if the node has the resources; return the resized pod, or None if not yet.

        The new amounts count from the decision on, so that no other pod gets the same resources. `publish` is
        called when the resize begins. If a step is refused, the next call continues from there.
        """
        wanted = resize.wanted
        if not resize.begun and not self._decide(pod, resize):
            return None
        self._admission.resized(wanted)
        await publish()
        clock, began = self._context.clock, self._context.clock()
        try:
            await self._apply(pod, resize)
        except Refused as error:
            self._metrics.carried_out(clock() - began, success=False)
            text = str(error)
            failed = in_progress(text)
            if resize.condition != failed:
                self._context.recorder.pod(pod, WARNING, "ResizeError", resize_text("error", wanted, text))
                self._context.decisions.pod(pod, "resize", "failed", text, _inputs(pod, wanted))
            resize.handle(ResizeEvent.FAIL, failed)
            raise
        self._allocations.placement.resized(wanted)
        self._metrics.carried_out(clock() - began, success=True)
        resize.handle(ResizeEvent.COMPLETE)
        self._context.recorder.pod(pod, NORMAL, "ResizeCompleted", resize_text("completed", wanted))
        self._context.decisions.pod(pod, "resize", "resized", "", _inputs(pod, wanted))
        return wanted

    def _decide(self, pod: Pod, resize: Resize) -> bool:
        """Check whether the node has the resources; report the outcome once while it stays the same."""
        wanted, before = resize.wanted, resize.state
        allocatable, others = self._admission.allocatable(), self._admission.used_beside(pod.uid)
        decision = decide_resize(
            pod,
            wanted,
            allocatable=allocatable,
            others=others,
            config=self._context.config,
            may_swap=self._allocations.cgroups.may_swap,
        )
        if decision.verdict == "Proceed":
            decision = self._allocations.placement.resize(pod, wanted)
        inputs = {
            **_inputs(pod, wanted),
            "others": _amounts(others),
            "allocatable": _amounts({name: allocatable.get(name, ZERO) for name in others}),
        }
        pending = decision.condition()
        if pending is not None:
            resize.handle(
                ResizeEvent.DEFER if decision.verdict == "Deferred" else ResizeEvent.REFUSE, pending
            )
            if resize.state is not before:
                why = f"OutOf{decision.short}" if decision.short else pending.reason
                text = resize_text(why, wanted, pending.message)
                self._context.recorder.pod(pod, WARNING, f"Resize{pending.reason}", text)
                if decision.verdict == "Infeasible":
                    self._metrics.infeasible(decision.detail)
                self._context.decisions.pod(pod, "resize", pending.reason.lower(), pending.message, inputs)
            return False
        if before is ResizeState.DEFERRED:
            self._metrics.accepted_after_waiting()
        resize.handle(ResizeEvent.BEGIN, in_progress())
        self._context.recorder.pod(pod, NORMAL, "ResizeStarted", resize_text("started", wanted))
        self._context.decisions.pod(pod, "resize", "started", "", inputs)
        return True

    async def _apply(self, old: Pod, wanted: Resize) -> None:
        """Apply the new amounts. Containers that restart are stopped first, so that none exceeds its
        smaller pod.
        """
        new = wanted.wanted
        running = {container.name: container for container in self._runtime.watch.pod(old.uid).may_run}
        resize = resize_of(old, new)
        for change in resize.containers if resize is not None else ():
            if change.restart and change.name in running:
                container = running.pop(change.name)
                wanted.stopped.add(container.id)
                text = f"Container {change.name} is restarted to be resized"
                await self._stopper.stop_container(old, container, grace_seconds(old, container), text)

        async def update(name: str, values: ContainerResources) -> None:
            container = running.get(name)
            if container is not None:
                # The kernel refuses a burst above the quota, so there is none while the quota changes.
                self._allocations.cgroups.set_burst(new, container.id, 0)
                await self._runtime.client.update_container_resources(container.id, cri_resources(values))
                self._allocations.cgroups.set_burst(new, container.id, values.cpu_quota)
                await self._runtime.watch.refresh_container(
                    old.uid, container.id, container.sandbox_id, notify=False
                )

        await self._allocations.placement.wait_placed(new)
        # Below a limit that is less than the usage, the kernel would kill processes of the container
        # (KEP-1287).
        usage = await self._memory_usage(list(running.values()))
        await self._update_runtime(new)
        await self._allocations.cgroups.resize_pod(old, new, update, usage)

    async def _update_runtime(self, new: Pod) -> None:
        """Send the pod's new amounts to the runtime, which may refuse before a cgroup is touched. Raises
        `Refused`.
        """
        sandbox = self._runtime.watch.pod(new.uid).sandbox
        if sandbox is not None:
            overhead = cri_resources(self._allocations.cgroups.overhead_resources(new))
            resources = cri_resources(self._allocations.cgroups.sandbox_resources(new))
            await self._runtime.client.update_pod_sandbox_resources(sandbox.id, overhead, resources)

    async def _memory_usage(self, containers: list[ContainerRecord]) -> dict[str, int | None]:
        """Return the memory in use in bytes by container name; None where the runtime does not measure it."""
        usage: dict[str, int | None] = {}
        for container in containers:
            usage[container.name] = None
            with contextlib.suppress(Refused):
                memory = (await self._runtime.client.container_stats(container.id)).memory
                usage[container.name] = memory.usage_bytes.value or memory.working_set_bytes.value or None
        return usage
