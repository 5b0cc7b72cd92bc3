"""Runs container GC: lists, removes, deletes logs. The acting module."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from engine.api.errors import InvalidInput, KubengineError, NotFound
from engine.api.events import WARNING
from engine.api.quantity import decimal
from engine.api.query import expect_known
from engine.containers.selection import (
    ContainerGCPolicy,
    DeadContainer,
    DeadSandbox,
    IsRemoved,
    Removal,
    containers_to_remove,
    sandboxes_to_remove,
)
from engine.cri import labels
from engine.cri.client import RuntimeClient
from engine.cri.paths import CONTAINER_LOGS, container_of_link, links_of, pod_of_log_directory
from engine.host.node_context import NodeContext
from engine.host.safe_open import opened_parent, same_file
from engine.host.trees import remove_tree
from engine.wire import cri_v1_pb2 as cri

PERIOD: Final = 60.0
STEP_SECONDS: Final = 1800.0
"""Seconds after which a run counts as stuck."""
_DEFAULT_GRACE = 30
_STATES = {
    cri.CONTAINER_CREATED: "created",
    cri.CONTAINER_RUNNING: "running",
    cri.CONTAINER_EXITED: "exited",
    cri.CONTAINER_UNKNOWN: "unknown",
}

log = logging.getLogger("kubengine.containers")


class ContainerGCReport(msgspec.Struct):
    """Hold one run: removed ids with reasons, failures by id, and deleted log directories and links."""

    at: float
    removed: dict[str, str] = msgspec.field(default_factory=dict)
    sandboxes: list[str] = msgspec.field(default_factory=list)
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    logs: list[str] = msgspec.field(default_factory=list)
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class ContainerGC:
    """Remove dead containers, their sandboxes and logs, every minute.

    `content_removed(uid)` tells that the pod is gone for good, so that everything of it may be removed.
    `runtime_removed(uid)` tells that it has terminated, so that its containers may be removed under disk
    pressure. `sources_ready()` tells that every pod source has reported, so that an unknown pod is really
    gone. A removal that fails is reported, and tried again in the next run.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        runtime: RuntimeClient,
        content_removed: IsRemoved,
        runtime_removed: IsRemoved,
        sources_ready: Callable[[], bool],
        container_logs_dir: Path = CONTAINER_LOGS,
        period: float = PERIOD,
    ) -> None:
        self.policy = ContainerGCPolicy.from_section(context.kubengine_config.container_gc)
        self.last_report: ContainerGCReport | None = None
        self._runtime, self._period = runtime, period
        self._recorder, self._clock, self._decisions = context.recorder, context.clock, context.decisions
        self._content_removed, self._runtime_removed = content_removed, runtime_removed
        self._sources_ready = sources_ready
        self._pod_logs_dir, self._container_logs_dir = Path(context.config.pod_logs_dir), container_logs_dir
        self._running = asyncio.Lock()
        self._task = context.tasks.task("container-gc")

    async def start(self) -> None:
        self._task.start(self._loop)

    async def stop(self) -> None:
        await self._task.stop()

    async def garbage_collect(self) -> ContainerGCReport:
        """Run one periodic collection. The report contains the failure, if any."""
        return await self._run(evict_non_deleted=False)

    async def delete_all_unused(self) -> ContainerGCReport:
        """Do the same under disk pressure: also remove what existing terminated pods have left."""
        return await self._run(evict_non_deleted=True)

    async def act(self, action: str, query: dict[str, str]) -> dict[str, Any]:
        """Run `gc` or `delete-unused`."""
        expect_known(query, (), "containers")
        if action == "gc":
            return (await self.garbage_collect()).to_json()
        if action == "delete-unused":
            return (await self.delete_all_unused()).to_json()
        raise InvalidInput("is not one of gc, delete-unused", subject=action)

    def describe(self) -> dict[str, Any]:
        return {
            "minAge": self.policy.min_age,
            "maxPerPodContainer": self.policy.max_per_pod_container,
            "maxContainers": self.policy.max_containers,
            "lastRun": self.last_report.to_json() if self.last_report else None,
        }

    async def _loop(self) -> None:
        while True:
            try:
                with self._task.step(STEP_SECONDS):
                    error = (await self.garbage_collect()).error
            except Exception as bug:
                self._task.failed(bug)
                error = str(bug)
            if error:
                self._recorder.node(WARNING, "ContainerGCFailed", error)
            await asyncio.sleep(self._period)

    async def _run(self, *, evict_non_deleted: bool) -> ContainerGCReport:
        async with self._running:
            report = self.last_report = ContainerGCReport(self._clock())
            # Read once: a source that becomes ready between two steps must not make their decisions differ.
            sources_ready = self._sources_ready()
            errors = []
            steps: tuple[Callable[[], Awaitable[None]], ...] = (
                lambda: self._evict_containers(report, sources_ready, evict_non_deleted),
                lambda: self._evict_sandboxes(report, evict_non_deleted),
                lambda: self._evict_logs(report, sources_ready),
            )
            for step in steps:
                try:
                    await step()
                except (KubengineError, OSError) as error:
                    errors.append(str(error))
            report.error = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]" if errors else ""
            return report

    async def _evict_containers(
        self, report: ContainerGCReport, sources_ready: bool, evict_non_deleted: bool
    ) -> None:
        listed = await self._runtime.list_containers()
        dead = [container for container in listed if container.state != cri.CONTAINER_RUNNING]
        graces = {c.id: c.annotations.get(labels.POD_GRACE, "") for c in dead}
        pods = {c.id: _pod_name(c.labels) for c in dead}
        plan = containers_to_remove(
            map(_dead_container, dead),
            self.policy,
            report.at,
            sources_ready=sources_ready,
            evict_non_deleted=evict_non_deleted,
            content_removed=self._content_removed,
            runtime_removed=self._runtime_removed,
        )
        for removal in plan:
            container, outcome, reason = removal.container, "collected", removal.reason
            try:
                await self._remove(removal, graces[container.id])
                report.removed[container.id] = removal.reason
            except KubengineError as error:
                log.warning("container %s could not be removed: %s", container.id, error)
                report.failed[container.id] = reason = str(error)
                outcome = "failed"
            self._decisions.record(
                "container-gc",
                outcome,
                reason,
                {
                    "id": container.id,
                    "state": container.state,
                    "created": container.created,
                    "attempt": container.attempt,
                    "underPressure": evict_non_deleted,
                },
                pod=pods[container.id],
                uid=container.pod_uid,
                container=container.name,
            )

    async def _remove(self, removal: Removal, grace: str) -> None:
        id = removal.container.id
        # A container in an unknown state may run; the runtime refuses to remove one that does.
        if removal.stop:
            seconds = decimal(grace)
            await self._runtime.stop_container(id, _DEFAULT_GRACE if seconds is None else seconds)
        try:
            path = (await self._runtime.container_status(id)).status.log_path
        except NotFound:
            return
        # Logs first: without the container nobody would know their path after a failure.
        if path:
            await asyncio.to_thread(self._delete_logs, Path(path), id)
        await self._runtime.remove_container(id)

    def _delete_logs(self, path: Path, id: str) -> None:
        with contextlib.suppress(OSError), opened_parent(path, self._pod_logs_dir) as (directory, name):
            held = Path(same_file(directory))
            for rotated in [held / name, *held.glob(glob.escape(name) + ".*")]:
                with contextlib.suppress(OSError):
                    rotated.unlink(missing_ok=True)
        for link in self._container_logs_dir.glob(links_of(id)):
            with contextlib.suppress(OSError):
                link.unlink(missing_ok=True)

    async def _evict_sandboxes(self, report: ContainerGCReport, evict_non_deleted: bool) -> None:
        # The usual case costs one list instead of two.
        if all(map(_is_ready, await self._runtime.list_pod_sandboxes())):
            return
        # Containers before sandboxes: a sandbox that is created in between then has no container in the list,
        # but it is ready, and only sandboxes that are not ready are removed.
        containers = await self._runtime.list_containers()
        sandboxes = await self._runtime.list_pod_sandboxes()
        plan = sandboxes_to_remove(
            map(_dead_sandbox, sandboxes),
            map(_dead_container, containers),
            evict_non_deleted=evict_non_deleted,
            content_removed=self._content_removed,
            runtime_removed=self._runtime_removed,
        )
        pods = {s.id: _pod_name(s.labels) for s in sandboxes}
        for sandbox in plan:
            outcome, reason = "collected", ""
            try:
                # Also one that is not ready: the runtime may still hold its network (CNI DEL).
                await self._runtime.stop_pod_sandbox(sandbox.id)
                await self._runtime.remove_pod_sandbox(sandbox.id)
                report.sandboxes.append(sandbox.id)
            except KubengineError as error:
                log.warning("sandbox %s could not be removed: %s", sandbox.id, error)
                report.failed[sandbox.id] = reason = str(error)
                outcome = "failed"
            self._decisions.record(
                "container-gc",
                outcome,
                reason,
                {"sandbox": sandbox.id, "created": sandbox.created, "underPressure": evict_non_deleted},
                pod=pods[sandbox.id],
                uid=sandbox.pod_uid,
            )

    async def _evict_logs(self, report: ContainerGCReport, sources_ready: bool) -> None:
        if sources_ready:
            for directory in await asyncio.to_thread(_entries, self._pod_logs_dir):
                if self._content_removed(pod_of_log_directory(directory)):
                    with contextlib.suppress(OSError):
                        await asyncio.to_thread(remove_tree, directory)
                    report.logs.append(str(directory))
        dangling = await asyncio.to_thread(_dangling, self._container_logs_dir)
        dead = [link for link in dangling if await self._is_dead(link)]
        report.logs += map(str, await asyncio.to_thread(_unlinked, dead))

    async def _is_dead(self, link: Path) -> bool:
        """Tell whether a dangling log link may go: a living container's log is missing only
        during rotation.
        """
        id = container_of_link(link)
        try:
            state = (await self._runtime.container_status(id)).status.state
        except NotFound:
            return True
        except KubengineError:
            return False
        return state == cri.CONTAINER_EXITED


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def _dangling(directory: Path) -> list[Path]:
    """Return the log links that lead nowhere; those that may not be examined are left out."""
    found = []
    for link in directory.glob("*.log"):
        with contextlib.suppress(OSError):
            if not link.exists():
                found.append(link)
    return found


def _unlinked(links: Iterable[Path]) -> list[Path]:
    """Remove links; return those that could be removed."""
    gone = []
    for link in links:
        with contextlib.suppress(OSError):
            link.unlink()
            gone.append(link)
    return gone


def _dead_container(container: cri.Container) -> DeadContainer:
    return DeadContainer(
        container.id,
        container.labels.get(labels.POD_UID, ""),
        container.metadata.name,
        _STATES.get(container.state, "unknown"),
        container.created_at / 1e9,
        container.pod_sandbox_id,
        container.metadata.attempt,
    )


def _pod_name(of: Mapping[str, str]) -> str:
    return f"{of.get(labels.POD_NAMESPACE, '')}/{of.get(labels.POD_NAME, '')}".strip("/")


def _is_ready(sandbox: cri.PodSandbox) -> bool:
    ready: bool = sandbox.state == cri.SANDBOX_READY
    return ready


def _dead_sandbox(sandbox: cri.PodSandbox) -> DeadSandbox:
    state = "ready" if _is_ready(sandbox) else "notready"
    return DeadSandbox(sandbox.id, sandbox.metadata.uid, state, sandbox.created_at / 1e9)
