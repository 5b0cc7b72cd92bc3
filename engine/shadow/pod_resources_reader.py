"""Ask the kubelet's pod-resources API: List and GetAllocatableResources, which change no pod."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from engine.api.errors import Unavailable
from engine.devices.pod_resources import SOCKET_NAME
from engine.plugins.channel import PluginChannel
from engine.shadow.kinds.observation import SeenResources
from engine.transport.grpc_channel import CallFailed
from engine.wire import podresources_v1_pb2 as v1

DIRECTORY: Final = "pod-resources"
TIMEOUT: Final = 5.0
_SERVICE: Final = "/v1.PodResourcesLister/"


class PodResourcesReader:
    """Keep one connection to the socket below a kubelet's root directory."""

    def __init__(self, root: Path) -> None:
        self._path = root / DIRECTORY / SOCKET_NAME
        self._channel: PluginChannel | None = None

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def read(self) -> SeenResources:
        """Return both answers. Raise `Unavailable`."""
        if self._channel is None:
            self._channel = PluginChannel(self._path)
        call = self._channel.call
        try:
            listed = await call(
                f"{_SERVICE}List", v1.ListPodResourcesRequest(), v1.ListPodResourcesResponse, TIMEOUT
            )
            allocatable = await call(
                f"{_SERVICE}GetAllocatableResources", v1.AllocatableResourcesRequest(),
                v1.AllocatableResourcesResponse, TIMEOUT,
            )  # fmt: skip
        except CallFailed as error:
            raise Unavailable(f"does not answer: {error.details}", subject=str(self._path)) from None
        pods = {f"{pod.namespace}/{pod.name}": pod for pod in listed.pod_resources}
        return SeenResources(pods, allocatable)
