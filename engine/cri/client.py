"""Calls the Container Runtime Interface, v1, over a unix socket.

Requests and responses are the protocol's own messages (`engine.wire.cri_v1_pb2`). Every call has a deadline,
messages may have 16 MiB, a lost runtime is dialled again with back-off (0.1 s to 3 s,
`engine.transport.grpc_channel`), and every failure is one of a few errors that name the call and the socket.

Lists may come as streams of messages (the kubelet's feature gate CRIListStreaming), so that a list may be
longer than a message.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from engine.api import grpc_codes
from engine.api.errors import InvalidInput, NotFound, Refused, Unavailable
from engine.host.tracing import NO_TRACING, Tracing
from engine.metrics import Registry
from engine.transport.grpc_channel import CallFailed, Channel
from engine.wire import cri_v1_pb2 as cri

MAX_MESSAGE = 16 * 1024 * 1024
DEFAULT_TIMEOUT = 120.0
MAX_STREAMED_LIST = 16 * MAX_MESSAGE
_RUNTIME = "runtime.v1.RuntimeService"
_IMAGES = "runtime.v1.ImageService"
_IMAGE_CALLS = frozenset(
    ("ListImages", "StreamImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo")
)
_STREAMED_CALLS = {
    "ListPodSandbox": "StreamPodSandboxes",
    "ListPodSandboxStats": "StreamPodSandboxStats",
    "ListContainers": "StreamContainers",
    "ListContainerStats": "StreamContainerStats",
    "ListImages": "StreamImages",
}
"""The streaming call in place of each list call. The requests are the same, and the messages of a stream are
parts of the other call's response: concatenated, they are that response, by protobuf's rule for repeated
fields.
"""

Answer = TypeVar("Answer", bound=Message)
Read = TypeVar("Read")


class Unimplemented(Refused):
    """Raised if the runtime is older than the call."""

    grpc_status = "UNIMPLEMENTED"


class Undecodable(Refused):
    """Raised if the runtime's response is malformed."""

    grpc_status = "INTERNAL"


def socket_path(endpoint: str) -> str:
    """Return the path of `unix:///path/to.sock`, or of a bare path. Raises InvalidInput naming
    the endpoint.
    """
    path = endpoint.removeprefix("unix://")
    if "://" in path or not path.startswith("/"):
        raise InvalidInput("expected unix:///absolute/path of the runtime's socket", subject=endpoint)
    if len(path.encode()) > 107:
        raise InvalidInput("longer than the 107 bytes that a unix socket's path may have", subject=path)
    return path


class RuntimeClient:
    """Call a runtime over one connection, on one asyncio loop.

    `endpoint` is `unix:///path/to.sock` or a bare path, `image_endpoint` that of the image service if it is
    another one. `timeout` is the deadline in seconds of a call that does not bring its own. `tracing` records
    the calls. With `streams_lists`, lists come as streams from runtimes that have these calls. All methods
    raise `Unavailable` (no answer in time), `NotFound`, `Unimplemented`, `Undecodable` or `Refused`.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        image_endpoint: str = "",
        timeout: float = DEFAULT_TIMEOUT,
        registry: Registry | None = None,
        tracing: Tracing = NO_TRACING,
        streams_lists: bool = False,
    ) -> None:
        path = socket_path(endpoint)
        self.endpoint = f"unix://{path}"
        self.socket = Path(path)
        self._timeout = timeout
        self._channel = Channel(path, limit=MAX_MESSAGE)
        image_path = socket_path(image_endpoint) if image_endpoint else path
        self._image_endpoint = f"unix://{image_path}"
        self._image_channel = Channel(image_path, limit=MAX_MESSAGE) if image_path != path else self._channel
        self.tracing = tracing
        self._streams_lists = streams_lists
        registry = registry or Registry()
        self._total = registry.counter(
            "kubelet_runtime_operations_total", "Calls to the runtime.", ["operation_type"]
        )
        self._errors = registry.counter(
            "kubelet_runtime_operations_errors_total", "Failed calls to the runtime.", ["operation_type"]
        )
        self._seconds = registry.histogram(
            "kubelet_runtime_operations_duration_seconds", "Duration of runtime calls.", ["operation_type"]
        )

    async def close(self) -> None:
        self._channel.close()
        self._image_channel.close()

    # The runtime itself

    async def version(self) -> cri.VersionResponse:
        return await self._runtime("Version", cri.VersionRequest(version="v1"), cri.VersionResponse)

    async def status(self, *, verbose: bool = False) -> cri.StatusResponse:
        return await self._runtime("Status", cri.StatusRequest(verbose=verbose), cri.StatusResponse)

    async def runtime_config(self) -> cri.RuntimeConfigResponse | None:
        """Return the runtime's configuration; None if it is too old to tell (containerd before 2.0)."""
        try:
            return await self._runtime("RuntimeConfig", cri.RuntimeConfigRequest(), cri.RuntimeConfigResponse)
        except Unimplemented:
            return None

    async def update_pod_cidr(self, cidr: str) -> None:
        """Send the pod CIDRs of this node, separated by commas."""
        config = cri.RuntimeConfig(network_config=cri.NetworkConfig(pod_cidr=cidr))
        request = cri.UpdateRuntimeConfigRequest(runtime_config=config)
        await self._runtime("UpdateRuntimeConfig", request, cri.UpdateRuntimeConfigResponse)

    # Sandboxes

    async def run_pod_sandbox(self, config: cri.PodSandboxConfig, handler: str = "") -> str:
        """Return the id of a started sandbox. Waits twice the usual deadline, because network
        setup is slow.
        """
        request = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
        answer = await self._runtime(
            "RunPodSandbox", request, cri.RunPodSandboxResponse, timeout=2 * self._timeout
        )
        return answer.pod_sandbox_id

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        request = cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self._runtime("StopPodSandbox", request, cri.StopPodSandboxResponse)

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        request = cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self._runtime("RemovePodSandbox", request, cri.RemovePodSandboxResponse)

    async def update_pod_sandbox_resources(
        self, sandbox_id: str, overhead: cri.LinuxContainerResources, resources: cri.LinuxContainerResources
    ) -> None:
        """Tell the runtime, and its NRI plugins, the resources that a pod's cgroup will get.

        Runtimes without the call (containerd before 2.3) are ignored: 2.2 answers Unknown, "not implemented
        yet".
        """
        request = cri.UpdatePodSandboxResourcesRequest(
            pod_sandbox_id=sandbox_id, overhead=overhead, resources=resources
        )
        try:
            await self._runtime("UpdatePodSandboxResources", request, cri.UpdatePodSandboxResourcesResponse)
        except Unimplemented:
            pass
        except Refused as error:
            # Only the message tells, since Unknown is also the code of every other failure.
            if "not implemented" not in error.message:
                raise

    async def pod_sandbox_status(
        self, sandbox_id: str, *, verbose: bool = False
    ) -> cri.PodSandboxStatusResponse:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=verbose)
        return await self._runtime("PodSandboxStatus", request, cri.PodSandboxStatusResponse)

    async def list_pod_sandboxes(self, filter: cri.PodSandboxFilter | None = None) -> list[cri.PodSandbox]:
        request = cri.ListPodSandboxRequest(filter=filter)
        answer = await self._runtime("ListPodSandbox", request, cri.ListPodSandboxResponse)
        return list(answer.items)

    async def read_pod_sandboxes(self, read: Callable[[bytes], Read]) -> Read:
        """Return what `read` makes of the serialized ListPodSandboxResponse with all sandboxes.

        A `ValueError` of `read` means that the response is malformed.
        """
        request = cri.ListPodSandboxRequest()
        return await self._call(_RUNTIME, "ListPodSandbox", request, read)

    async def pod_sandbox_stats(self, sandbox_id: str) -> cri.PodSandboxStats:
        request = cri.PodSandboxStatsRequest(pod_sandbox_id=sandbox_id)
        answer = await self._runtime("PodSandboxStats", request, cri.PodSandboxStatsResponse)
        return answer.stats

    async def read_pod_sandbox_stats(self, read: Callable[[bytes], Read]) -> Read:
        """Return what `read` makes of the serialized ListPodSandboxStatsResponse."""
        return await self._call(_RUNTIME, "ListPodSandboxStats", cri.ListPodSandboxStatsRequest(), read)

    # Containers

    async def create_container(
        self, sandbox_id: str, config: cri.ContainerConfig, sandbox_config: cri.PodSandboxConfig
    ) -> str:
        request = cri.CreateContainerRequest(
            pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config
        )
        answer = await self._runtime("CreateContainer", request, cri.CreateContainerResponse)
        return answer.container_id

    async def start_container(self, container_id: str) -> None:
        request = cri.StartContainerRequest(container_id=container_id)
        await self._runtime("StartContainer", request, cri.StartContainerResponse)

    async def stop_container(self, container_id: str, grace_seconds: int) -> None:
        """Stop a container; return when it has stopped. It is killed after `grace_seconds`."""
        request = cri.StopContainerRequest(container_id=container_id, timeout=grace_seconds)
        await self._runtime(
            "StopContainer", request, cri.StopContainerResponse, timeout=self._timeout + grace_seconds
        )

    async def remove_container(self, container_id: str) -> None:
        request = cri.RemoveContainerRequest(container_id=container_id)
        await self._runtime("RemoveContainer", request, cri.RemoveContainerResponse)

    async def list_containers(self, filter: cri.ContainerFilter | None = None) -> list[cri.Container]:
        request = cri.ListContainersRequest(filter=filter)
        answer = await self._runtime("ListContainers", request, cri.ListContainersResponse)
        return list(answer.containers)

    async def read_containers(self, read: Callable[[bytes], Read]) -> Read:
        """Return what `read` makes of the serialized ListContainersResponse with every container."""
        request = cri.ListContainersRequest()
        return await self._call(_RUNTIME, "ListContainers", request, read)

    async def container_status(
        self, container_id: str, *, verbose: bool = False
    ) -> cri.ContainerStatusResponse:
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        return await self._runtime("ContainerStatus", request, cri.ContainerStatusResponse)

    async def update_container_resources(
        self, container_id: str, resources: cri.LinuxContainerResources
    ) -> None:
        request = cri.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        await self._runtime("UpdateContainerResources", request, cri.UpdateContainerResourcesResponse)

    async def reopen_container_log(self, container_id: str) -> None:
        request = cri.ReopenContainerLogRequest(container_id=container_id)
        await self._runtime("ReopenContainerLog", request, cri.ReopenContainerLogResponse)

    async def exec_sync(
        self, container_id: str, command: list[str], timeout_seconds: float
    ) -> cri.ExecSyncResponse:
        """Run a command in a container; the runtime kills it after `timeout_seconds` (whole seconds, 0: no
        limit).
        """
        # CRI takes whole seconds, and 0 means no limit: a fraction must not become 0.
        whole = math.ceil(timeout_seconds)
        request = cri.ExecSyncRequest(container_id=container_id, cmd=command, timeout=whole)
        # The runtime needs time to kill the command and to answer after the time-out.
        deadline = whole + 5.0 if whole else self._timeout
        return await self._runtime("ExecSync", request, cri.ExecSyncResponse, timeout=deadline)

    # Streams: URLs at which the runtime waits for the caller

    async def exec_url(
        self, container_id: str, command: list[str], *, stdin: bool, stdout: bool, stderr: bool, tty: bool
    ) -> str:
        request = cri.ExecRequest(
            container_id=container_id, cmd=command, stdin=stdin, stdout=stdout, stderr=stderr, tty=tty
        )
        return (await self._runtime("Exec", request, cri.ExecResponse)).url

    async def attach_url(
        self, container_id: str, *, stdin: bool, stdout: bool, stderr: bool, tty: bool
    ) -> str:
        request = cri.AttachRequest(
            container_id=container_id, stdin=stdin, stdout=stdout, stderr=stderr, tty=tty
        )
        return (await self._runtime("Attach", request, cri.AttachResponse)).url

    async def port_forward_url(self, sandbox_id: str, ports: list[int]) -> str:
        request = cri.PortForwardRequest(pod_sandbox_id=sandbox_id, port=ports)
        return (await self._runtime("PortForward", request, cri.PortForwardResponse)).url

    async def checkpoint_container(self, container_id: str, location: str, timeout_seconds: int) -> None:
        """Write a checkpoint archive to `location`; time-out 0 means as long as any call may take."""
        request = cri.CheckpointContainerRequest(
            container_id=container_id, location=location, timeout=timeout_seconds
        )
        deadline = float(timeout_seconds) or None
        await self._runtime("CheckpointContainer", request, cri.CheckpointContainerResponse, timeout=deadline)

    # Statistics

    async def container_stats(self, container_id: str) -> cri.ContainerStats:
        request = cri.ContainerStatsRequest(container_id=container_id)
        answer = await self._runtime("ContainerStats", request, cri.ContainerStatsResponse)
        return answer.stats

    async def list_container_stats(
        self, filter: cri.ContainerStatsFilter | None = None
    ) -> list[cri.ContainerStats]:
        request = cri.ListContainerStatsRequest(filter=filter)
        answer = await self._runtime("ListContainerStats", request, cri.ListContainerStatsResponse)
        return list(answer.stats)

    async def events(self) -> AsyncIterator[cri.ContainerEventResponse]:
        """Yield container events until the stream breaks.

        Raises `Unimplemented` if the runtime has no events, and `Undecodable` for a malformed one.
        """
        request = cri.GetEventsRequest().SerializeToString()
        method = "/runtime.v1.RuntimeService/GetContainerEvents"
        try:
            async with aclosing(self._channel.messages(method, request)) as messages:
                async for message in messages:
                    yield self._made("GetContainerEvents", cri.ContainerEventResponse.FromString, message)
        except CallFailed as error:
            raise _as_ours("GetContainerEvents", error, self.endpoint) from None

    # Images

    async def list_images(self) -> list[cri.Image]:
        answer = await self._images("ListImages", cri.ListImagesRequest(), cri.ListImagesResponse)
        return list(answer.images)

    async def read_images(self, read: Callable[[bytes], Read]) -> Read:
        """Return what `read` makes of the serialized ListImagesResponse."""
        return await self._call(_IMAGES, "ListImages", cri.ListImagesRequest(), read)

    async def image_status(self, image: str, handler: str = "") -> cri.Image | None:
        """Return the image's status; None if the runtime does not have it."""
        spec = cri.ImageSpec(image=image, runtime_handler=handler)
        answer = await self._images(
            "ImageStatus", cri.ImageStatusRequest(image=spec), cri.ImageStatusResponse
        )
        # CRI answers a missing image with an empty response, and not with NotFound.
        return answer.image if answer.HasField("image") else None

    async def image_info(self, image: str, handler: str = "") -> Mapping[str, str]:
        """Return the runtime's verbose information about an image; empty if it does not have it."""
        spec = cri.ImageSpec(image=image, runtime_handler=handler)
        request = cri.ImageStatusRequest(image=spec, verbose=True)
        return (await self._images("ImageStatus", request, cri.ImageStatusResponse)).info

    async def pull_image(
        self,
        image: str,
        sandbox_config: cri.PodSandboxConfig | None = None,
        *,
        auth: cri.AuthConfig | None = None,
        timeout: float = 600.0,
    ) -> str:
        """Pull an image and return its reference; `auth` are the credentials for its registry."""
        spec = cri.ImageSpec(image=image)
        request = cri.PullImageRequest(image=spec, auth=auth, sandbox_config=sandbox_config)
        answer = await self._images("PullImage", request, cri.PullImageResponse, timeout=timeout)
        return answer.image_ref

    async def remove_image(self, image: str, handler: str = "") -> None:
        spec = cri.ImageSpec(image=image, runtime_handler=handler)
        await self._images("RemoveImage", cri.RemoveImageRequest(image=spec), cri.RemoveImageResponse)

    async def image_fs_info(self) -> cri.ImageFsInfoResponse:
        return await self._images("ImageFsInfo", cri.ImageFsInfoRequest(), cri.ImageFsInfoResponse)

    # The common path of all calls

    def _runtime(
        self, name: str, request: Message, answer: type[Answer], timeout: float | None = None
    ) -> Awaitable[Answer]:
        return self._call(_RUNTIME, name, request, answer.FromString, timeout)

    def _images(
        self, name: str, request: Message, answer: type[Answer], timeout: float | None = None
    ) -> Awaitable[Answer]:
        return self._call(_IMAGES, name, request, answer.FromString, timeout)

    async def _call(
        self,
        service: str,
        name: str,
        request: Message,
        read: Callable[[bytes], Read],
        timeout: float | None = None,
    ) -> Read:
        """Return what `read` makes of the serialized response."""
        streamed = _STREAMED_CALLS.get(name) if self._streams_lists else None
        operation = _snake(name)
        self._total.inc(operation)
        began = time.perf_counter()
        patience = self._timeout if timeout is None else timeout
        try:
            data = await self._answer(service, streamed or name, request, patience, is_stream=bool(streamed))
        except Refused as error:
            if streamed is None or not isinstance(error, Unimplemented):
                self._errors.inc(operation)
                raise
        else:
            return self._made(name, read, data)
        finally:
            self._seconds.observe(time.perf_counter() - began, operation)
        # The runtime cannot stream lists, and will not learn it while the agent runs (as in the kubelet).
        self._streams_lists = False
        return await self._call(service, name, request, read, timeout)

    async def _answer(
        self, service: str, name: str, request: Message, timeout: float, *, is_stream: bool
    ) -> bytes:
        """Return the serialized response of a call, or the concatenated messages of a stream."""
        channel = self._image_channel if service == _IMAGES else self._channel
        method, message = f"/{service}/{name}", request.SerializeToString()
        try:
            if is_stream:
                return await _joined_stream(channel, method, message, timeout)
            with self.tracing.call(service, name) as fields:
                return await channel.unary(method, message, timeout, fields)
        except CallFailed as error:
            raise _as_ours(name, error, self._endpoint_of(name)) from None

    def _endpoint_of(self, name: str) -> str:
        return self._image_endpoint if name in _IMAGE_CALLS else self.endpoint

    def _made(self, name: str, make: Callable[[bytes], Read], data: bytes) -> Read:
        try:
            return make(data)
        # Deep nesting and huge lengths in a damaged message raise the last two.
        except (DecodeError, ValueError, RecursionError, MemoryError):
            self._errors.inc(_snake(name))
            subject = f"CRI {name} on {self._endpoint_of(name)}"
            raise Undecodable("its response cannot be decoded", subject=subject) from None


async def _joined_stream(channel: Channel, method: str, message: bytes, timeout: float) -> bytes:
    """Return the concatenated messages of a stream. Raises CallFailed, also for a stream that takes longer
    than `timeout` seconds or exceeds `MAX_STREAMED_LIST`.
    """
    joined = bytearray()
    try:
        async with asyncio.timeout(timeout), aclosing(channel.messages(method, message)) as messages:
            async for part in messages:
                joined += part
                if len(joined) > MAX_STREAMED_LIST:
                    raise CallFailed(
                        grpc_codes.RESOURCE_EXHAUSTED, f"the list exceeds {MAX_STREAMED_LIST >> 20} MiB"
                    )
    except TimeoutError:
        raise CallFailed(grpc_codes.DEADLINE_EXCEEDED, f"the list took longer than {timeout:g} s") from None
    return bytes(joined)


def _as_ours(name: str, error: CallFailed, endpoint: str) -> Refused:
    subject = f"CRI {name} on {endpoint}"
    details = error.details or f"gRPC status {error.status}"
    text = grpc_codes.rpc_error(error.status, error.details)
    # Only these statuses have a meaning that callers act upon; runtimes answer Unknown for nearly all the
    # rest.
    match error.status:
        case grpc_codes.NOT_FOUND:
            return NotFound(details, subject=subject, status_text=text)
        case grpc_codes.UNIMPLEMENTED:
            return Unimplemented(details, subject=subject, status_text=text)
        case grpc_codes.UNAVAILABLE:
            return Unavailable(f"the runtime does not answer ({details})", subject=subject)
        case grpc_codes.DEADLINE_EXCEEDED:
            return Unavailable(f"no answer before the deadline ({details})", subject=subject)
        case _:
            return Refused(details, subject=subject, status_text=text)


@cache
def _snake(name: str) -> str:
    """Return the metric's label of one of the CRI's calls."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
