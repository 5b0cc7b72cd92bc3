"""In-place resize of a running pod: a changed amount of cpu or memory reaches its cgroups and containers.

Decisions are `engine.cgroups.resize`'s; this file carries them out through the cgroup manager and the
runtime, restarts the containers whose resizePolicy asks for it, and says how far it got as conditions.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from engine.api.errors import Refused
from engine.api.events import NORMAL, WARNING
from engine.api.pod import Pod
from engine.api.status import PodCondition
from engine.cgroups.containers import ContainerResources
from engine.cgroups.resize import decide_resize, in_progress, resize_of
from engine.cri.records import ContainerRecord
from engine.node.services import Services
from engine.node.starting import cri_resources
from engine.node.stopping import grace_seconds, stop_container


@dataclass(slots=True)
class Resize:
    """A resize that a pod's manifest asks for and that has not been done yet."""

    wanted: Pod
    condition: PodCondition | None = None

    @property
    def waiting(self) -> bool:
        """Whether it can only go on when the node has more room."""
        return self.condition is not None and self.condition.reason == "Deferred"


def can_resize(old: Pod, new: Pod) -> bool:
    """Whether the two differ only in what an in-place resize may change."""
    return resize_of(old, new) is not None


async def carry_out(pod: Pod, resize: Resize, services: Services) -> Pod | None:
    """Does the resize if the node has room; the pod as it is then, None while it cannot be done.

    The new amounts count from the decision on, so that nobody else gets the same room. A step that is
    refused leaves the condition PodResizeInProgress with reason Error; the next call goes on from there.
    """
    decision = decide_resize(
        pod,
        resize.wanted,
        allocatable=services.accounts.allocatable(),
        others=services.accounts.used_beside(pod.uid),
        config=services.node.config,
    )
    condition = decision.condition()
    if condition is not None:
        if resize.condition != condition:
            services.recorder.pod(pod, WARNING, f"Resize{condition.reason}", condition.message)
        resize.condition = condition
        return None
    resize.condition = in_progress()
    services.accounts.resized(resize.wanted)
    try:
        await _apply(pod, resize.wanted, services)
    except Refused as error:
        resize.condition = in_progress(str(error))
        raise
    services.recorder.pod(pod, NORMAL, "ResizeCompleted", "Pod resize completed")
    return resize.wanted


async def _apply(old: Pod, new: Pod, services: Services) -> None:
    """Containers that restart for it are stopped first, so that none holds more than its shrunk pod."""
    running = {container.name: container for container in services.watch.pod(old.uid).may_run}
    resize = resize_of(old, new)
    for change in resize.containers if resize is not None else ():
        if change.restart and change.name in running:
            container = running.pop(change.name)
            text = f"Container {change.name} is restarted to be resized"
            await stop_container(old, container, services, grace_seconds(old, container), text)

    async def update(name: str, values: ContainerResources) -> None:
        container = running.get(name)
        if container is not None:
            await services.runtime.update_container_resources(container.id, cri_resources(values))
            await services.watch.refresh_container(old.uid, container.id, container.sandbox_id, notify=False)

    usage = await _memory_usage(list(running.values()), services)
    await services.cgroups.resize_pod(old, new, update, usage)


async def _memory_usage(containers: list[ContainerRecord], services: Services) -> dict[str, int]:
    """Bytes in use by container name, for those that the runtime can tell."""
    usage = {}
    for container in containers:
        with contextlib.suppress(Refused):
            stats = await services.runtime.container_stats(container.id)
            usage[container.name] = stats.memory.usage_bytes.value or stats.memory.working_set_bytes.value
    return usage
