"""Ends containers and pods: hooks, grace, order, sandboxes; then takes away what is left of a pod.

Containers end together; sidecars after them, in reverse order, in what is left of the grace period.
Works from the runtime's record alone, so a pod whose manifest has gone can be ended too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from engine.api.errors import Refused
from engine.api.events import NORMAL, WARNING
from engine.api.pod import Container, Pod
from engine.cri.client import NotFound
from engine.cri.paths import pod_log_directory
from engine.cri.records import ContainerRecord, PodRecord
from engine.host.trees import remove_tree
from engine.node.hooks import run_hook
from engine.node.log_links import remove_log_link
from engine.node.services import Services

log = logging.getLogger("kubengine.pods")

MINIMUM_GRACE_SECONDS = 2


def grace_seconds(pod: Pod, record: ContainerRecord | None = None, probe: str = "") -> int:
    """The pod's own grace; a liveness or startup probe that ends the container may bring its own."""
    grace = pod.spec.termination_grace_period_seconds
    if grace is None:
        grace = record.grace_seconds if record is not None and record.grace_seconds is not None else 30
    if record is not None and probe:
        container = next((c for c in pod.all_containers if c.name == record.name), None)
        spec = getattr(container, f"{probe}_probe", None)
        if spec is not None and spec.termination_grace_period_seconds is not None:
            grace = spec.termination_grace_period_seconds
    return max(grace, MINIMUM_GRACE_SECONDS)


async def stop_container(
    pod: Pod, record: ContainerRecord, services: Services, grace: int, message: str = ""
) -> None:
    """preStop, then the runtime's stop with the rest of the grace. Raises `Refused` or `Unavailable`."""
    text = message or f"Stopping container {record.name}"
    services.recorder.pod(pod, NORMAL, "Killing", text, container=record.name)
    container = next((c for c in pod.all_containers if c.name == record.name), None)
    remaining = grace
    if container is not None and record.running and grace > 0:
        remaining = await _pre_stop(pod, container, record, services, grace)
    with contextlib.suppress(NotFound):
        await services.runtime.stop_container(record.id, remaining)
    await services.watch.refresh_container(pod.uid, record.id, record.sandbox_id, notify=False)


async def _pre_stop(
    pod: Pod, container: Container, record: ContainerRecord, services: Services, grace: int
) -> int:
    """Runs the hook; what is left of the grace, at least the minimum."""
    handler = container.lifecycle.pre_stop if container.lifecycle is not None else None
    if handler is None:
        return grace
    began = time.monotonic()
    sandbox = services.watch.pod(pod.uid).sandbox
    ip = sandbox.ips[0] if sandbox is not None and sandbox.ips else services.node.host_ip
    try:
        await run_hook(services.runtime, pod, container, record.id, handler, pod_ip=ip, timeout=float(grace))
    except (Refused, TimeoutError) as error:
        log.warning("%s", error or f"pod {pod.full_name}: the preStop hook took longer than the grace period")
        services.recorder.pod(
            pod, WARNING, "FailedPreStopHook", "PreStopHook failed", container=container.name
        )
    return max(MINIMUM_GRACE_SECONDS, grace - round(time.monotonic() - began))


async def stop_pod(
    pod: Pod, record: PodRecord, services: Services, grace_of: Callable[[ContainerRecord], int]
) -> None:
    """Ends every container, then every sandbox. Raises the first refusal, having tried them all."""
    sidecars = [c.name for c in pod.init_containers if c.is_sidecar]
    running = record.may_run
    main = [c for c in running if c.name not in sidecars]
    began = time.monotonic()
    failures = await _together(stop_container(pod, c, services, grace_of(c)) for c in main)
    for name in reversed(sidecars):
        for sidecar in (c for c in running if c.name == name):
            left = max(MINIMUM_GRACE_SECONDS, grace_of(sidecar) - round(time.monotonic() - began))
            left = min(left, grace_of(sidecar))
            failures += await _together([stop_container(pod, sidecar, services, left)])
    failures += await _together(
        _stop_sandbox(record.uid, sandbox.id, services) for sandbox in record.sandboxes if sandbox.ready
    )
    if failures:
        raise failures[0]


async def stop_sooner(running: Iterable[ContainerRecord], services: Services, grace: int) -> None:
    """Asks the runtime again, while it still waits for these containers with a longer grace."""
    await _together(services.runtime.stop_container(container.id, grace) for container in running)


async def _stop_sandbox(uid: str, sandbox_id: str, services: Services) -> None:
    with contextlib.suppress(NotFound):
        await services.runtime.stop_pod_sandbox(sandbox_id)
    await services.watch.refresh_sandbox(uid, sandbox_id, notify=False)


async def _together(coroutines: Iterable[object]) -> list[Refused]:
    results = await asyncio.gather(*coroutines, return_exceptions=True)  # type: ignore[call-overload]
    failures = [result for result in results if isinstance(result, Refused)]
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, Refused):
            raise result
    return failures


async def free_node(uid: str, services: Services) -> None:
    """Gives back what a pod that has stopped has of the node: cgroup and volumes. Raises `Refused`."""
    services.cgroups.remove_pod(uid)
    await services.volume_keeper.tear_down(uid)


async def remove_pod(record: PodRecord, services: Services, pod: Pod) -> None:
    """Takes away containers, sandboxes and logs of a pod that has stopped.

    Raises `Refused` naming what would not go; called again, it goes on with the rest.
    """
    for container in list(record.containers):
        with contextlib.suppress(NotFound):
            await services.runtime.remove_container(container.id)
        remove_log_link(record, container)
        services.watch.forget(record.uid, [container.id])
    for sandbox in list(record.sandboxes):
        with contextlib.suppress(NotFound):
            await services.runtime.remove_pod_sandbox(sandbox.id)
        services.watch.forget(record.uid, [sandbox.id])
    with contextlib.suppress(OSError):
        await asyncio.to_thread(remove_tree, pod_log_directory(Path(services.node.config.pod_logs_dir), pod))


async def remove_dead(record: PodRecord, services: Services, keep: int = 1) -> None:
    """Of each container's dead copies keeps the newest few; of older dead sandboxes those that hold one."""
    seen: dict[str, int] = {}
    for container in list(record.containers):
        if container in record.may_run:
            continue
        seen[container.name] = seen.get(container.name, 0) + 1
        if seen[container.name] > keep:
            with contextlib.suppress(Refused):
                await services.runtime.remove_container(container.id)
                remove_log_link(record, container)
                services.watch.forget(record.uid, [container.id])
                services.decisions.record(
                    "container-gc",
                    "collected",
                    "newer ones of its name have ended",
                    {"id": container.id, "attempt": container.attempt, "kept": keep},
                    pod=record.full_name,
                    uid=record.uid,
                    container=container.name,
                )
    for sandbox in record.sandboxes[1:]:
        if not sandbox.ready and all(c.sandbox_id != sandbox.id for c in record.containers):
            with contextlib.suppress(Refused):
                await services.runtime.remove_pod_sandbox(sandbox.id)
                services.watch.forget(record.uid, [sandbox.id])
