"""Serves the pods API (`v1alpha1.Pods`) on the socket of a kubelet, behind the feature gate PodsAPI.

Source: kubelet v1.36 (`pkg/kubelet/apis/pods`). Unary calls have its rate limit, 100 in a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final

from engine.api.errors import Refused
from engine.api.grpc_codes import NOT_FOUND, RESOURCE_EXHAUSTED
from engine.api.pod import Pod
from engine.api.protobuf.pods import encode_pod
from engine.devices.claimed_server import ClaimedServer
from engine.devices.methods import CallFailed, Method, StreamMethod
from engine.devices.pod_resources import BURST, MOST_CALLS, QUERIES_PER_SECOND, RateLimit
from engine.host.node_context import NodeContext
from engine.node.podsapi.watchers import PodWatchers
from engine.plugins.channel import check_socket_path
from engine.wire import pods_v1alpha1_pb2 as wire

DIRECTORY: Final = "pods-api"
SOCKET_NAME: Final = "pods-api.sock"
MOST_SHOWN: Final = 256
"""Characters of a uid in an error, whose text must fit into the headers of an answer."""


class PodsServer:
    """Serve the node's pods, which `pods` returns; `watchers` hear of changes."""

    def __init__(self, context: NodeContext, pods: Callable[[], Sequence[Pod]]) -> None:
        self.path = context.root.resolve() / DIRECTORY / SOCKET_NAME
        check_socket_path(self.path)
        self.watchers = PodWatchers(pods, context.registry)
        self._pods = pods
        self._limit = RateLimit(QUERIES_PER_SECOND, BURST)
        methods: dict[str, Method | StreamMethod] = {
            "GetPod": Method(wire.GetPodRequest, self._get),
            "ListPods": Method(wire.ListPodsRequest, self._list),
            "WatchPods": StreamMethod(wire.WatchPodsRequest, self._watch),
        }
        self._server = ClaimedServer(
            self.path, {"v1alpha1.Pods": methods}, most_calls=MOST_CALLS, tasks=context.tasks
        )

    def claim(self) -> None:
        """Claim the socket, which does not answer yet. Raises `Refused` if it cannot be bound."""
        self._server.claim()

    async def start(self) -> None:
        """Start answering on the claimed socket."""
        await self._server.start()

    async def stop(self) -> None:
        """Stop answering; watches end."""
        await self._server.stop()

    async def _get(self, request: wire.GetPodRequest) -> wire.GetPodResponse:
        self._limit.check()
        found = next((pod for pod in self._pods() if pod.uid == request.podUID), None)
        if found is None:
            raise CallFailed(NOT_FOUND, f"pod with UID {request.podUID[:MOST_SHOWN]} not found")
        return wire.GetPodResponse(pod=encode_pod(found))

    async def _list(self, _: wire.ListPodsRequest) -> wire.ListPodsResponse:
        self._limit.check()
        answer = wire.ListPodsResponse()
        for pod in sorted(self._pods(), key=lambda pod: pod.uid):
            answer.pods.append(encode_pod(pod))
            await asyncio.sleep(0)  # encoding some hundred pods in one turn would hold up the node
        return answer

    async def _watch(self, _: wire.WatchPodsRequest) -> AsyncGenerator[wire.WatchPodsEvent, None]:
        try:
            async with aclosing(self.watchers.watch()) as events:
                async for kind, pod in events:
                    yield wire.WatchPodsEvent(type=wire.EventType.Name(kind), pod=pod)
        except Refused as error:
            raise CallFailed(RESOURCE_EXHAUSTED, error.message) from None
