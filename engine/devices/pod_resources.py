"""The pod-resources API on its socket: which container holds which devices (v1, and v1alpha1's List).

Rule: kubelet v1.32 `pkg/kubelet/apis/podresources`. Restartable init containers are listed, ordinary
ones are not; v1alpha1 knows app containers only. CPUs and memory are those of the CPU and memory managers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from engine.api.errors import InvalidInput, KubengineError
from engine.api.grpc_codes import RESOURCE_EXHAUSTED, UNKNOWN
from engine.api.pod import Container, Pod
from engine.devices.checkpoint import NO_NODE, CheckpointEntry
from engine.devices.claimed_server import ClaimedServer
from engine.devices.methods import Method
from engine.devices.state import DeviceState
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.plugins.channel import check_socket_path
from engine.transport.grpc_channel import CallFailed
from engine.wire import podresources_v1_pb2 as v1
from engine.wire import podresources_v1alpha1_pb2 as v1alpha1

SOCKET_NAME = "kubelet.sock"
QUERIES_PER_SECOND = 100.0
BURST = 10.0
MOST_CALLS = 1000
_PREFIX = "kubelet_pod_resources_endpoint_"
_COUNTERS: Final = {
    "requests_total": "Cumulative number of requests to the PodResource API.",
    "requests_list": "Number of requests to the PodResource List API.",
    "requests_get": "Number of requests to the PodResource Get API.",
    "requests_get_allocatable": "Number of requests to the PodResource GetAllocatableResources API.",
    "errors_list": "Number of requests to the PodResource List API which returned an error.",
    "errors_get": "Number of requests to the PodResource Get API which returned an error.",
    "errors_get_allocatable": "Number of failed requests to GetAllocatableResources.",
}

Answer = TypeVar("Answer")


class RateLimit:
    """Limit a rate as a token bucket; `take` tells whether a request may pass. Times are seconds from
    `clock`.
    """

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._at = clock()

    def take(self) -> bool:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def check(self) -> None:
        """Let a request pass. Raises CallFailed with the kubelet's words if too many came before it."""
        if not self.take():
            raise CallFailed(RESOURCE_EXHAUSTED, "rejected by rate limit")


class ClaimedDevice(Protocol):
    """Describe a device of a claim, as its driver named it."""

    @property
    def pool(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def share_id(self) -> str | None: ...

    @property
    def cdi_ids(self) -> Sequence[str]: ...


class ContainerClaim(Protocol):
    """Describe a ResourceClaim that a container uses."""

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    def devices(self) -> Iterable[tuple[str, ClaimedDevice]]:
        """Return each device with its driver."""


class MemoryBlock(NamedTuple):
    """Hold memory of one type, in bytes, on a group of NUMA nodes."""

    type: str
    size: int
    nodes: Sequence[int]


class PinnedResources(Protocol):
    """Return the allocations of the CPU and memory managers; `engine.node.pinning.Pinning` implements it."""

    def exclusive_cpus(self, pod_uid: str, container: str) -> Sequence[int]:
        """Return the exclusive CPUs of a container, ascending."""

    def promised_memory(self, pod_uid: str, container: str) -> Sequence[MemoryBlock]:
        """Return the reserved memory of a container."""

    def allocatable_cpus(self) -> Sequence[int]:
        """Return all CPUs that can be exclusive, ascending."""

    def allocatable_memory(self) -> Sequence[MemoryBlock]:
        """Return the allocatable memory of each NUMA node."""


ClaimsOf = Callable[[Pod, Container], Sequence[ContainerClaim]]
"""The claims of a container."""


class PodResourcesServer:
    """Serve both versions on one socket with one rate limit.

    `active` returns the pods that Get finds, `listed` those of v1's List. `collect` first releases devices
    of pods that are gone.
    """

    def __init__(
        self,
        directory: Path,
        state: DeviceState,
        *,
        active: Callable[[], Sequence[Pod]],
        listed: Callable[[], Sequence[Pod]],
        collect: Callable[[], None],
        registry: Registry,
        tasks: Tasks,
    ) -> None:
        self.path = directory / SOCKET_NAME
        check_socket_path(self.path)
        self.state = state
        self.active = active
        self.listed = listed
        self.collect = collect
        self.pinned: PinnedResources | None = None
        self.claims: ClaimsOf = lambda pod, container: ()
        self._limit = RateLimit(QUERIES_PER_SECOND, BURST)
        self._counters = {
            name: registry.counter(f"{_PREFIX}{name}", help, ("server_api_version",))
            for name, help in _COUNTERS.items()
        }
        self._server = ClaimedServer(
            self.path,
            {
                "v1.PodResourcesLister": _V1(self).methods(),
                "v1alpha1.PodResourcesLister": _V1alpha1(self).methods(),
            },
            most_calls=MOST_CALLS,
            tasks=tasks,
        )

    def claim(self) -> None:
        """Claim the socket, which does not answer yet. Raises `Refused` if it cannot be bound."""
        self._server.claim()

    async def start(self) -> None:
        """Start answering on the claimed socket."""
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    def answer(self, version: str, kind: str, make: Callable[[], Answer]) -> Answer:
        """Count a request, apply the rate limit, and answer it. Raises CallFailed."""
        self._limit.check()
        self._counters["requests_total"].inc(version)
        self._counters[f"requests_{kind}"].inc(version)
        try:
            return make()
        except KubengineError as error:
            self._counters[f"errors_{kind}"].inc(version)
            raise CallFailed(UNKNOWN, str(error)) from error


class _V1:
    def __init__(self, server: PodResourcesServer) -> None:
        self._server = server

    def methods(self) -> dict[str, Method]:
        return {
            "List": Method(v1.ListPodResourcesRequest, self.list_pods),
            "GetAllocatableResources": Method(v1.AllocatableResourcesRequest, self.allocatable),
            "Get": Method(v1.GetPodResourcesRequest, self.get),
        }

    async def list_pods(self, _: v1.ListPodResourcesRequest) -> v1.ListPodResourcesResponse:
        return self._server.answer("v1", "list", self._list)

    async def allocatable(self, _: v1.AllocatableResourcesRequest) -> v1.AllocatableResourcesResponse:
        return self._server.answer("v1", "get_allocatable", self._allocatable)

    async def get(self, request: v1.GetPodResourcesRequest) -> v1.GetPodResourcesResponse:
        return self._server.answer("v1", "get", lambda: self._get(request))

    def _list(self) -> v1.ListPodResourcesResponse:
        self._server.collect()
        return v1.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._server.listed()])

    def _get(self, request: v1.GetPodResourcesRequest) -> v1.GetPodResourcesResponse:
        for pod in self._server.active():
            if pod.metadata.name == request.pod_name and pod.metadata.namespace == request.pod_namespace:
                return v1.GetPodResourcesResponse(pod_resources=self._pod(pod))
        raise InvalidInput(f"pod {request.pod_name} in namespace {request.pod_namespace} not found")

    def _allocatable(self) -> v1.AllocatableResourcesResponse:
        answer = v1.AllocatableResourcesResponse()
        for name, resource in sorted(self._server.state.resources.items()):
            inventory = resource.inventory
            for id in inventory.healthy_names():
                answer.devices.append(_device(name, id, inventory.nodes_of(id)))
        pinned = self._server.pinned
        if pinned is not None:
            answer.cpu_ids.extend(pinned.allocatable_cpus())
            answer.memory.extend(map(_memory, pinned.allocatable_memory()))
        return answer

    def _pod(self, pod: Pod) -> v1.PodResources:
        server = self._server
        return pod_resources(pod, server.state, server.pinned, server.claims)


def pod_resources(
    pod: Pod, state: DeviceState, pinned: PinnedResources | None, claims: ClaimsOf
) -> v1.PodResources:
    """Return what List and Get answer about a pod."""
    return v1.PodResources(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        containers=[
            v1.ContainerResources(
                name=container.name,
                devices=_devices(pod, container, state),
                cpu_ids=pinned.exclusive_cpus(pod.uid, container.name) if pinned is not None else (),
                memory=map(_memory, pinned.promised_memory(pod.uid, container.name))
                if pinned is not None
                else (),
                dynamic_resources=_dynamic_resources(claims(pod, container)),
            )
            for container in [*(c for c in pod.init_containers if c.is_sidecar), *pod.spec.containers]
        ],
    )


def _devices(pod: Pod, container: Container, state: DeviceState) -> list[v1.ContainerDevices]:
    return [
        _device(entry.resource_name, id, nodes)
        for entry in state.entries_of(pod.uid, container.name)
        for id, nodes in _nodes_by_device(entry)
    ]


def _memory(block: MemoryBlock) -> v1.ContainerMemory:
    nodes = [v1.NUMANode(ID=node) for node in block.nodes]
    return v1.ContainerMemory(memory_type=block.type, size=block.size, topology=v1.TopologyInfo(nodes=nodes))


class _V1alpha1:
    def __init__(self, server: PodResourcesServer) -> None:
        self._server = server

    def methods(self) -> dict[str, Method]:
        return {"List": Method(v1alpha1.ListPodResourcesRequest, self.list_pods)}

    async def list_pods(self, _: v1alpha1.ListPodResourcesRequest) -> v1alpha1.ListPodResourcesResponse:
        return self._server.answer("v1alpha1", "list", self._list)

    def _list(self) -> v1alpha1.ListPodResourcesResponse:
        self._server.collect()
        entries = self._server.state.entries_of
        return v1alpha1.ListPodResourcesResponse(
            pod_resources=[
                v1alpha1.PodResources(
                    name=pod.metadata.name,
                    namespace=pod.metadata.namespace,
                    containers=[
                        v1alpha1.ContainerResources(
                            name=container.name,
                            devices=[
                                v1alpha1.ContainerDevices(resource_name=entry.resource_name, device_ids=[id])
                                for entry in entries(pod.uid, container.name)
                                for id, _ in _nodes_by_device(entry)
                            ],
                        )
                        for container in pod.spec.containers
                    ],
                )
                for pod in self._server.active()
            ]
        )


def _dynamic_resources(claims: Iterable[ContainerClaim]) -> list[v1.DynamicResource]:
    return [
        v1.DynamicResource(
            claim_name=claim.name,
            claim_namespace=claim.namespace,
            claim_resources=[
                v1.ClaimResource(
                    cdi_devices=[v1.CDIDevice(name=id) for id in device.cdi_ids],
                    driver_name=driver,
                    pool_name=device.pool,
                    device_name=device.device,
                    share_id=device.share_id,
                )
                for driver, device in claim.devices()
            ],
        )
        for claim in claims
    ]


def _nodes_by_device(entry: CheckpointEntry) -> list[tuple[str, tuple[int, ...] | None]]:
    """Return each device of an assignment with its NUMA nodes (None: no topology), by id."""
    nodes: dict[str, list[int]] = {}
    for node, ids in sorted((entry.device_ids or {}).items()):
        for id in ids or ():
            nodes.setdefault(id, []).extend([] if node == NO_NODE else [node])
    return [(id, tuple(found) or None) for id, found in sorted(nodes.items())]


def _device(resource: str, id: str, nodes: Iterable[int] | None) -> v1.ContainerDevices:
    topology = None if nodes is None else v1.TopologyInfo(nodes=[v1.NUMANode(ID=node) for node in nodes])
    return v1.ContainerDevices(resource_name=resource, device_ids=[id], topology=topology)
