"""Ends containers and pods: hooks, grace periods, order, sandboxes; then removes what is left of a pod.

All preStop hooks begin at once. Then the regular containers stop together, and the sidecars after them in
reverse order, each within what is left of its grace period. Only the runtime's record is needed, so that a
pod whose manifest is gone can be stopped too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from engine.api.errors import NotFound, Refused
from engine.api.events import NORMAL, WARNING
from engine.api.pod import Container, Pod
from engine.cri.paths import log_link, pod_log_directory
from engine.cri.records import ContainerRecord, PodRecord
from engine.host.node_context import NodeContext
from engine.host.trees import remove_tree
from engine.node.sync.hooks import HookRunner
from engine.node.sync.services import RuntimeServices

log = logging.getLogger("kubengine.pods")

MINIMUM_GRACE_SECONDS = 2


def grace_seconds(pod: Pod, record: ContainerRecord | None = None, probe: str = "") -> int:
    """Return the pod's grace period, or that of a liveness or startup probe that ends the container.

    A period of 0 leaves no time for a preStop hook (`PodStopper.stop_container`).
    """
    grace = pod.spec.termination_grace_period_seconds
    if grace is None:
        grace = record.grace_seconds if record is not None and record.grace_seconds is not None else 30
    if record is not None and probe:
        container = next((c for c in pod.all_containers if c.name == record.name), None)
        spec = getattr(container, f"{probe}_probe", None)
        if spec is not None and spec.termination_grace_period_seconds is not None:
            grace = spec.termination_grace_period_seconds
    return grace


def ends_before(pod: Pod, name: str) -> set[str]:
    """Return the containers that stop before this one: for a sidecar, the regular ones and later sidecars."""
    sidecars = [container.name for container in pod.init_containers if container.is_sidecar]
    if name not in sidecars:
        return set()
    return {container.name for container in pod.spec.containers} | set(sidecars[sidecars.index(name) + 1 :])


async def _wait_until(deadline: float, hook: asyncio.Task[None], after: Iterable[asyncio.Event]) -> None:
    """Wait for the hook and all events, until `deadline`, a monotonic time in seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(deadline - time.monotonic()):
            await asyncio.wait([hook])
            for event in after:
                await event.wait()


async def _together(coroutines: Iterable[object]) -> list[Refused]:
    results = await asyncio.gather(*coroutines, return_exceptions=True)  # type: ignore[call-overload]
    failures = [result for result in results if isinstance(result, Refused)]
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, Refused):
            raise result
    return failures


class PodStopper:
    """Stop containers and sandboxes through the runtime, and remove them."""

    def __init__(self, context: NodeContext, runtime: RuntimeServices, hooks: HookRunner) -> None:
        self._context = context
        self._runtime = runtime
        self._hooks = hooks
        self._stopping_sooner = context.tasks.passing("pod-shorten_grace")

    async def remove_container(self, record: PodRecord, container: ContainerRecord) -> None:
        """Remove a container that does not run, and the link to its log. Raises `Refused`."""
        with contextlib.suppress(NotFound):
            await self._runtime.client.remove_container(container.id)
        _remove_log_link(record, container)
        self._runtime.watch.forget(record.uid, [container.id])

    async def stop_container(
        self,
        pod: Pod,
        record: ContainerRecord,
        grace: int,
        message: str = "",
        *,
        after: Iterable[asyncio.Event] = (),
    ) -> None:
        """Run the preStop hook, wait for the containers that stop earlier (`after`), then stop the container.

        A hook that takes longer than `grace` is cut off. With `grace` 0, no hook runs and nothing is waited
        for; the container has two seconds to end even then. Raises `Refused` or `Unavailable`.
        """
        text = message or f"Stopping container {record.name}"
        self._context.recorder.pod(pod, NORMAL, "Killing", text, container=record.name)
        began = time.monotonic()
        async with self._pre_stop_hook(pod, record, grace) as hook:
            if grace > 0:
                await _wait_until(began + grace, hook, after)
                if not hook.done():
                    self._report_hook_failure(pod, record.name, "it took longer than the grace period")
                grace -= int(time.monotonic() - began)
            with contextlib.suppress(NotFound):
                await self._runtime.client.stop_container(record.id, max(MINIMUM_GRACE_SECONDS, grace))
        await self._runtime.watch.refresh_container(pod.uid, record.id, record.sandbox_id, notify=False)

    @contextlib.asynccontextmanager
    async def _pre_stop_hook(
        self, pod: Pod, record: ContainerRecord, grace: int
    ) -> AsyncIterator[asyncio.Task[None]]:
        """Run the container's preStop hook, if there is one and time for it; it ends with the block at the
        latest.
        """
        container = next((c for c in pod.all_containers if c.name == record.name), None)
        hook = asyncio.create_task(
            self._pre_stop(pod, container, record.id)
            if container is not None and record.running and grace > 0
            else asyncio.sleep(0)
        )
        try:
            yield hook
        finally:
            hook.cancel()
            await asyncio.wait([hook])
        if not hook.cancelled():
            hook.result()

    async def _pre_stop(self, pod: Pod, container: Container, container_id: str) -> None:
        handler = container.lifecycle.pre_stop if container.lifecycle is not None else None
        if handler is None:
            return
        sandbox = self._runtime.watch.pod(pod.uid).sandbox
        try:
            await self._hooks.run(pod, container, container_id, handler, sandbox)
        except (Refused, TimeoutError) as error:
            self._report_hook_failure(pod, container.name, str(error) or "it took longer than a day")

    def _report_hook_failure(self, pod: Pod, container: str, why: str) -> None:
        log.warning("pod %s: the preStop hook of container %s failed: %s", pod.full_name, container, why)
        self._context.recorder.pod(
            pod, WARNING, "FailedPreStopHook", "PreStopHook failed", container=container
        )

    async def stop_pod(self, pod: Pod, record: PodRecord, grace_of: Callable[[ContainerRecord], int]) -> None:
        """Stop every container, then every sandbox. Tries all of them, then raises the first refusal."""
        running = record.may_run
        stopped = {container.id: asyncio.Event() for container in running}

        async def stop(container: ContainerRecord) -> None:
            first = ends_before(pod, container.name)
            after = [stopped[other.id] for other in running if other.name in first]
            await self.stop_container(pod, container, grace_of(container), after=after)
            stopped[container.id].set()

        failures = await _together(stop(container) for container in running)
        # After the containers: a runtime that stops a sandbox kills what runs in it (CRI, StopPodSandbox).
        failures += await _together(
            self._stop_sandbox(record.uid, sandbox.id) for sandbox in record.sandboxes if sandbox.ready
        )
        if failures:
            raise failures[0]

    def stop_sooner(self, pod: Pod, running: Iterable[ContainerRecord], grace: int) -> None:
        """Stop containers again with a shorter grace period, while the runtime waits with a longer one."""
        least = max(MINIMUM_GRACE_SECONDS, grace)
        self._stopping_sooner.start(self._stop_all(running, least), pod.full_name)

    async def _stop_all(self, running: Iterable[ContainerRecord], grace: int) -> None:
        await _together(self._runtime.client.stop_container(container.id, grace) for container in running)

    async def stop(self) -> None:
        """Stop background work, because the agent stops; pods keep running."""
        await self._stopping_sooner.stop()

    async def _stop_sandbox(self, uid: str, sandbox_id: str) -> None:
        with contextlib.suppress(NotFound):
            await self._runtime.client.stop_pod_sandbox(sandbox_id)
        await self._runtime.watch.refresh_sandbox(uid, sandbox_id, notify=False)

    async def remove_pod(self, record: PodRecord, pod: Pod) -> None:
        """Remove the containers, sandboxes and logs of a stopped pod.

        Raises `Refused` naming what could not be removed; another call continues with the rest.
        """
        for container in list(record.containers):
            await self.remove_container(record, container)
        for sandbox in list(record.sandboxes):
            with contextlib.suppress(NotFound):
                await self._runtime.client.remove_pod_sandbox(sandbox.id)
            self._runtime.watch.forget(record.uid, [sandbox.id])
        with contextlib.suppress(OSError):
            await asyncio.to_thread(
                remove_tree, pod_log_directory(Path(self._context.config.pod_logs_dir), pod)
            )

    async def remove_dead(self, record: PodRecord, keep: int = 1) -> None:
        """Remove old dead containers but for the newest few of each, and old sandboxes without containers."""
        seen: dict[str, int] = {}
        for container in list(record.containers):
            if container in record.may_run:
                continue
            seen[container.name] = seen.get(container.name, 0) + 1
            if seen[container.name] > keep:
                with contextlib.suppress(Refused):
                    await self._runtime.client.remove_container(container.id)
                    _remove_log_link(record, container)
                    self._runtime.watch.forget(record.uid, [container.id])
                    self._context.decisions.record(
                        "container-gc",
                        "collected",
                        "newer containers of the same name have ended",
                        {"id": container.id, "attempt": container.attempt, "kept": keep},
                        pod=record.full_name,
                        uid=record.uid,
                        container=container.name,
                    )
        for sandbox in record.sandboxes[1:]:
            if not sandbox.ready and all(c.sandbox_id != sandbox.id for c in record.containers):
                with contextlib.suppress(Refused):
                    await self._runtime.client.remove_pod_sandbox(sandbox.id)
                    self._runtime.watch.forget(record.uid, [sandbox.id])


def _remove_log_link(record: PodRecord, container: ContainerRecord) -> None:
    """Remove the link to a container's log; a failure is ignored, as in a kubelet."""
    with contextlib.suppress(OSError):
        log_link(record.namespace, record.name, container.name, container.id).unlink(missing_ok=True)
