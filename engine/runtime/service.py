"""Implement the rules of the Container Runtime Interface over any backend.

Decides which objects may be created, started, stopped and removed in which state, what is an error and what
is already done; handles names, filters and events. The backend does the work; `Records` holds the state.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

from engine.api.errors import InvalidInput
from engine.api.version import engine_version
from engine.runtime.events import Events
from engine.runtime.objects.backend import Backend
from engine.runtime.objects.failures import NoSuchObject, Unsupported, WrongState
from engine.runtime.objects.records import (
    CREATED,
    EXITED,
    NOT_READY,
    READY,
    RUNNING,
    Records,
    RuntimeContainer,
    Sandbox,
    chunks,
    joined,
    new_id,
)
from engine.runtime.streaming.protocol import CommandTicket, PortForwardTicket, Ticket
from engine.runtime.streaming.server import StreamingServer, check_streams
from engine.wire import cri_v1_pb2 as cri

START_ERROR = 128


class RuntimeService:
    """Implement `runtime.v1.RuntimeService`, with a coroutine per call.

    `streaming` serves the URLs of Exec, Attach and PortForward; without it they are unsupported.
    """

    def __init__(
        self, backend: Backend, *, cgroup_driver: str = "cgroupfs", streaming: StreamingServer | None = None
    ) -> None:
        self.records = Records()
        self._backend = backend
        self._streaming = streaming
        self._driver = cri.SYSTEMD if cgroup_driver == "systemd" else cri.CGROUPFS
        self._events = Events()
        self._version = engine_version()
        self._pod_cidr = ""
        self.handlers: tuple[str, ...] = ("",)
        """Names of the runtime handlers, which all behave alike."""

    async def start(self) -> None:
        await self._backend.start(self.records, self)
        if self._streaming is not None:
            try:
                await self._streaming.start()
            except BaseException:
                await self._backend.stop()
                raise

    async def stop(self) -> None:
        if self._streaming is not None:
            await self._streaming.stop()
        self._events.close()
        await self._backend.stop()

    # The runtime itself

    async def version(self, _request: cri.VersionRequest) -> cri.VersionResponse:
        return cri.VersionResponse(
            version="0.1.0",
            runtime_name=self._backend.name,
            runtime_version=self._version,
            runtime_api_version="v1",
        )

    async def status(self, request: cri.StatusRequest) -> cri.StatusResponse:
        info = {}
        if request.verbose:
            counts = {"sandboxes": len(self.records.sandboxes), "containers": len(self.records.containers)}
            info["config"] = json.dumps({"backend": self._backend.name, "podCIDR": self._pod_cidr, **counts})
        return cri.StatusResponse(
            status=cri.RuntimeStatus(
                conditions=[
                    cri.RuntimeCondition(type="RuntimeReady", status=True),
                    cri.RuntimeCondition(type="NetworkReady", status=True),
                ]
            ),
            info=info,
            runtime_handlers=[
                cri.RuntimeHandler(
                    name=name, features=cri.RuntimeHandlerFeatures(recursive_read_only_mounts=True)
                )
                for name in self.handlers
            ],
            features=cri.RuntimeFeatures(supplemental_groups_policy=True),
        )

    async def runtime_config(self, _request: cri.RuntimeConfigRequest) -> cri.RuntimeConfigResponse:
        return cri.RuntimeConfigResponse(linux=cri.LinuxRuntimeConfiguration(cgroup_driver=self._driver))

    async def update_runtime_config(
        self, request: cri.UpdateRuntimeConfigRequest
    ) -> cri.UpdateRuntimeConfigResponse:
        """Accept the configuration and show it in the status; pods' addresses come from the runtime's own
        setting.
        """
        self._pod_cidr = request.runtime_config.network_config.pod_cidr
        return cri.UpdateRuntimeConfigResponse()

    # Sandboxes

    async def run_pod_sandbox(self, request: cri.RunPodSandboxRequest) -> cri.RunPodSandboxResponse:
        config = request.config
        if not config.metadata.name:
            raise InvalidInput("expected a name", subject="config.metadata.name")
        handler = request.runtime_handler
        if handler not in self.handlers:
            raise NoSuchObject("no such runtime handler", subject=f"handler {handler!r}")
        sandbox = Sandbox(new_id(), config, time.time_ns(), state=NOT_READY, handler=handler)
        self.records.reserve(sandbox)
        try:
            await self._backend.run_sandbox(sandbox)
        except BaseException:
            self.records.release(sandbox)
            raise
        sandbox.state = READY
        self.records.add_sandbox(sandbox)
        self._events.notify(sandbox, sandbox.id, cri.CONTAINER_CREATED_EVENT, sandbox.created_at)
        self._events.notify(sandbox, sandbox.id, cri.CONTAINER_STARTED_EVENT)
        return cri.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    async def stop_pod_sandbox(self, request: cri.StopPodSandboxRequest) -> cri.StopPodSandboxResponse:
        with contextlib.suppress(NoSuchObject):
            await self._stop_sandbox(self.records.sandbox(request.pod_sandbox_id))
        return cri.StopPodSandboxResponse()

    async def remove_pod_sandbox(self, request: cri.RemovePodSandboxRequest) -> cri.RemovePodSandboxResponse:
        with contextlib.suppress(NoSuchObject):
            sandbox = self.records.sandbox(request.pod_sandbox_id)
            await self._stop_sandbox(sandbox)
            for container in list(sandbox.containers.values()):
                await self._remove_container(container)
            async with sandbox.lock:
                if sandbox.id in self.records.sandboxes:
                    await self._backend.remove_sandbox(sandbox)
                    self.records.drop_sandbox(sandbox)
                    self._events.notify(sandbox, sandbox.id, cri.CONTAINER_DELETED_EVENT)
        return cri.RemovePodSandboxResponse()

    async def pod_sandbox_status(self, request: cri.PodSandboxStatusRequest) -> cri.PodSandboxStatusResponse:
        sandbox = self.records.sandbox(request.pod_sandbox_id)
        return cri.PodSandboxStatusResponse(
            status=sandbox.status(),
            info=self._backend.info(sandbox) if request.verbose else {},
            containers_statuses=[container.status() for container in sandbox.containers.values()],
            timestamp=time.time_ns(),
        )

    async def list_pod_sandbox(self, request: cri.ListPodSandboxRequest) -> bytes:
        return joined(self.records.select_sandboxes(request.filter))

    async def stream_pod_sandboxes(self, request: cri.StreamPodSandboxesRequest) -> AsyncIterator[bytes]:
        for chunk in chunks(self.records.select_sandboxes(request.filter)):
            yield joined(chunk)

    async def update_pod_sandbox_resources(
        self, request: cri.UpdatePodSandboxResourcesRequest
    ) -> cri.UpdatePodSandboxResourcesResponse:
        """Record the request only: the node agent manages the pod's cgroup."""
        sandbox = self.records.sandbox(request.pod_sandbox_id)
        sandbox.config.linux.overhead.CopyFrom(request.overhead)
        sandbox.config.linux.resources.CopyFrom(request.resources)
        return cri.UpdatePodSandboxResourcesResponse()

    # Containers

    async def create_container(self, request: cri.CreateContainerRequest) -> cri.CreateContainerResponse:
        sandbox = self.records.sandbox(request.pod_sandbox_id)
        config = request.config
        subject = f"container {config.metadata.name!r}"
        if sandbox.state != READY:
            raise WrongState("its sandbox is not ready", subject=subject)
        if not config.metadata.name:
            raise InvalidInput("expected a name", subject="config.metadata.name")
        security = config.linux.security_context
        if security.HasField("run_as_group") and not (
            security.HasField("run_as_user") or security.run_as_username
        ):
            raise InvalidInput("run_as_group needs run_as_user or run_as_username", subject=subject)
        if security.privileged and not sandbox.config.linux.security_context.privileged:
            raise InvalidInput("a privileged container needs a privileged pod", subject=subject)
        image = self._backend.images.resolve(config.image.image)
        if image is None:
            raise NoSuchObject(
                "not in the image store; pull it first", subject=f"image {config.image.image!r}"
            )
        container = RuntimeContainer(
            new_id(),
            sandbox,
            config,
            time.time_ns(),
            image_id=image.id,
            image_ref=image.repo_digests[0] if image.repo_digests else image.id,
            image_name=image.repo_tags[0] if image.repo_tags else config.image.image,
        )
        self.records.reserve(container)
        try:
            await self._backend.create_container(container, image)
        except BaseException:
            self.records.release(container)
            raise
        self.records.add_container(container)
        if sandbox.id not in self.records.sandboxes:
            await self._remove_container(container)
            raise WrongState("its sandbox was removed in the meantime", subject=subject)
        self._events.notify(sandbox, container.id, cri.CONTAINER_CREATED_EVENT, container.created_at)
        return cri.CreateContainerResponse(container_id=container.id)

    async def start_container(self, request: cri.StartContainerRequest) -> cri.StartContainerResponse:
        container = self.records.container(request.container_id)
        subject = f"container {container.id}"
        async with container.lock:
            if container.state != CREATED or container.id not in self.records.containers:
                state = cri.ContainerState.Name(container.state)
                raise WrongState(f"is in state {state}, not CONTAINER_CREATED", subject=subject)
            if container.sandbox.state != READY:
                raise WrongState("its sandbox is not ready", subject=subject)
            try:
                await self._backend.start_container(container)
            except BaseException as error:
                self._finish(container, START_ERROR, time.time_ns(), "StartError", str(error))
                raise
            if container.state == CREATED:
                container.state, container.wire = RUNNING, None
                container.started_at = container.started_at or time.time_ns()
                self._events.notify(
                    container.sandbox, container.id, cri.CONTAINER_STARTED_EVENT, container.started_at
                )
        return cri.StartContainerResponse()

    async def stop_container(self, request: cri.StopContainerRequest) -> cri.StopContainerResponse:
        with contextlib.suppress(NoSuchObject):
            container = self.records.container(request.container_id)
            if container.state == RUNNING:
                await self._backend.stop_container(container, max(0, request.timeout))
            elif container.state == CREATED:
                async with container.lock:
                    pass  # a start in progress ends first
                if container.state == RUNNING:
                    await self._backend.stop_container(container, max(0, request.timeout))
        return cri.StopContainerResponse()

    async def remove_container(self, request: cri.RemoveContainerRequest) -> cri.RemoveContainerResponse:
        with contextlib.suppress(NoSuchObject):
            await self._remove_container(self.records.container(request.container_id))
        return cri.RemoveContainerResponse()

    async def container_status(self, request: cri.ContainerStatusRequest) -> cri.ContainerStatusResponse:
        container = self.records.container(request.container_id)
        return cri.ContainerStatusResponse(
            status=container.status(), info=self._backend.info(container) if request.verbose else {}
        )

    async def list_containers(self, request: cri.ListContainersRequest) -> bytes:
        return joined(self.records.select_containers(request.filter))

    async def stream_containers(self, request: cri.StreamContainersRequest) -> AsyncIterator[bytes]:
        for chunk in chunks(self.records.select_containers(request.filter)):
            yield joined(chunk)

    async def update_container_resources(
        self, request: cri.UpdateContainerResourcesRequest
    ) -> cri.UpdateContainerResourcesResponse:
        container = self.records.container(request.container_id)
        async with container.lock:
            if container.state not in (CREATED, RUNNING):
                raise WrongState("is neither created nor running", subject=f"container {container.id}")
            await self._backend.update_resources(container, request.linux)
        return cri.UpdateContainerResourcesResponse()

    async def reopen_container_log(
        self, request: cri.ReopenContainerLogRequest
    ) -> cri.ReopenContainerLogResponse:
        await self._backend.reopen_log(self._running(request.container_id))
        return cri.ReopenContainerLogResponse()

    async def exec_sync(self, request: cri.ExecSyncRequest) -> cri.ExecSyncResponse:
        container = self._running(request.container_id)
        if not request.cmd:
            raise InvalidInput("expected a command", subject="cmd")
        timeout = float(request.timeout) if request.timeout > 0 else None
        result = await self._backend.commands.exec_sync(container, list(request.cmd), timeout)
        return cri.ExecSyncResponse(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code)

    async def exec(self, request: cri.ExecRequest) -> cri.ExecResponse:
        container = self._running(request.container_id)
        if not request.cmd:
            raise InvalidInput("expected a command", subject="cmd")
        return cri.ExecResponse(url=self._stream(_command_ticket(container, request, list(request.cmd))))

    async def attach(self, request: cri.AttachRequest) -> cri.AttachResponse:
        container = self._running(request.container_id)
        return cri.AttachResponse(url=self._stream(_command_ticket(container, request, [])))

    async def port_forward(self, request: cri.PortForwardRequest) -> cri.PortForwardResponse:
        sandbox = self.records.sandbox(request.pod_sandbox_id)
        if sandbox.state != READY:
            raise WrongState("is not ready", subject=f"sandbox {sandbox.id}")
        for port in request.port:
            if not 0 < port < 1 << 16:
                raise InvalidInput("expected a number from 1 to 65535", subject=f"port {port}")
        return cri.PortForwardResponse(url=self._stream(PortForwardTicket(sandbox, list(request.port))))

    # Stats

    async def container_stats(self, request: cri.ContainerStatsRequest) -> cri.ContainerStatsResponse:
        container = self.records.container(request.container_id)
        [stats] = await self._backend.container_stats([container])
        return cri.ContainerStatsResponse(stats=stats)

    async def list_container_stats(
        self, request: cri.ListContainerStatsRequest
    ) -> cri.ListContainerStatsResponse:
        return cri.ListContainerStatsResponse(stats=await self._select_stats(request.filter))

    async def stream_container_stats(
        self, request: cri.StreamContainerStatsRequest
    ) -> AsyncIterator[cri.StreamContainerStatsResponse]:
        for chunk in chunks(await self._select_stats(request.filter)):
            yield cri.StreamContainerStatsResponse(container_stats=chunk)

    async def pod_sandbox_stats(self, request: cri.PodSandboxStatsRequest) -> cri.PodSandboxStatsResponse:
        sandbox = self.records.sandbox(request.pod_sandbox_id)
        return cri.PodSandboxStatsResponse(stats=await self._sandbox_stats(sandbox))

    async def list_pod_sandbox_stats(
        self, request: cri.ListPodSandboxStatsRequest
    ) -> cri.ListPodSandboxStatsResponse:
        chosen = self._select_for_stats(request.filter)
        return cri.ListPodSandboxStatsResponse(stats=[await self._sandbox_stats(s) for s in chosen])

    async def stream_pod_sandbox_stats(
        self, request: cri.StreamPodSandboxStatsRequest
    ) -> AsyncIterator[cri.StreamPodSandboxStatsResponse]:
        for chunk in chunks(self._select_for_stats(request.filter)):
            yield cri.StreamPodSandboxStatsResponse(
                pod_sandbox_stats=[await self._sandbox_stats(sandbox) for sandbox in chunk]
            )

    # Events

    def get_container_events(self, _request: cri.GetEventsRequest) -> AsyncIterator[bytes]:
        return self._events.listen()

    # Calls from the backend

    def container_exited(
        self, container: RuntimeContainer, *, exit_code: int, finished_at: int, reason: str, message: str = ""
    ) -> None:
        if container.state != EXITED:
            self._finish(container, exit_code, finished_at, reason, message)

    def sandbox_died(self, sandbox: Sandbox) -> None:
        if sandbox.state == READY:
            sandbox.state, sandbox.wire = NOT_READY, None
            self._events.notify(sandbox, sandbox.id, cri.CONTAINER_STOPPED_EVENT)

    # Steps that calls share

    def _finish(
        self, container: RuntimeContainer, exit_code: int, finished_at: int, reason: str, message: str
    ) -> None:
        container.state, container.wire = EXITED, None
        container.exit_code, container.finished_at = exit_code, finished_at
        container.reason, container.message, container.pid = reason, message, 0
        self._events.notify(container.sandbox, container.id, cri.CONTAINER_STOPPED_EVENT, finished_at)

    async def _stop_sandbox(self, sandbox: Sandbox) -> None:
        running = [c for c in sandbox.containers.values() if c.state == RUNNING or c.lock.locked()]
        await asyncio.gather(*(self._kill(container) for container in running))
        async with sandbox.lock:
            if sandbox.id not in self.records.sandboxes:
                return
            await self._backend.stop_sandbox(sandbox)
            self.sandbox_died(sandbox)

    async def _kill(self, container: RuntimeContainer) -> None:
        if container.state == CREATED:
            async with container.lock:
                pass
        if container.state == RUNNING:
            await self._backend.stop_container(container, 0)

    async def _remove_container(self, container: RuntimeContainer) -> None:
        await self._kill(container)
        async with container.lock:
            if container.id not in self.records.containers:
                return
            await self._backend.remove_container(container)
            self.records.drop_container(container)
        self._events.notify(container.sandbox, container.id, cri.CONTAINER_DELETED_EVENT)

    def _stream(self, ticket: Ticket) -> str:
        if self._streaming is None:
            raise Unsupported("these containers have no processes", subject=self._backend.name)
        return self._streaming.url(ticket)

    def _running(self, container_id: str) -> RuntimeContainer:
        container = self.records.container(container_id)
        if container.state != RUNNING:
            state = cri.ContainerState.Name(container.state)
            raise WrongState(
                f"is in state {state}, not CONTAINER_RUNNING", subject=f"container {container.id}"
            )
        return container

    async def _select_stats(self, filter: cri.ContainerStatsFilter) -> list[cri.ContainerStats]:
        wanted = cri.ContainerFilter(
            id=filter.id, pod_sandbox_id=filter.pod_sandbox_id, label_selector=filter.label_selector
        )
        return await self._backend.container_stats(list(self.records.select_containers(wanted)))

    def _select_for_stats(self, filter: cri.PodSandboxStatsFilter) -> list[Sandbox]:
        wanted = cri.PodSandboxFilter(id=filter.id, label_selector=filter.label_selector)
        return [s for s in self.records.select_sandboxes(wanted) if s.state == READY]

    async def _sandbox_stats(self, sandbox: Sandbox) -> cri.PodSandboxStats:
        linux = await self._backend.sandbox_stats(sandbox)
        running = [c for c in sandbox.containers.values() if c.state == RUNNING]
        linux.containers.extend(await self._backend.container_stats(running))
        return cri.PodSandboxStats(
            attributes=cri.PodSandboxAttributes(
                id=sandbox.id,
                metadata=sandbox.config.metadata,
                labels=sandbox.config.labels,
                annotations=sandbox.config.annotations,
            ),
            linux=linux,
        )


def _command_ticket(
    container: RuntimeContainer, request: cri.ExecRequest | cri.AttachRequest, command: list[str]
) -> CommandTicket:
    """Validate the streams of a command. Raise InvalidInput for an invalid combination."""
    check_streams(stdin=request.stdin, stdout=request.stdout, stderr=request.stderr, tty=request.tty)
    return CommandTicket(container, command, request.stdin, request.stdout, request.stderr, request.tty)
