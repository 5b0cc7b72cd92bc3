"""The node as an API object: what admission decides with, and what `/kubengine/node` shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from engine.api.config import KubeletConfiguration
from engine.api.errors import KubengineError
from engine.api.meta import ObjectMeta
from engine.api.moments import whole_second
from engine.api.node import ContainerImage, Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus
from engine.api.struct import to_builtins
from engine.node import machine
from engine.node.node_resources import NodeResources
from engine.wire import cri_v1_pb2 as cri

NAMES_PER_IMAGE: Final = 5


class NodeDescription:
    """`pressures()` are the node's pressure conditions, `problems()` is what keeps the node from
    being ready, `images()` what the runtime has. Clock in Unix seconds."""

    def __init__(
        self,
        *,
        name: str,
        config: KubeletConfiguration,
        labels: Mapping[str, str],
        resources: NodeResources,
        host_ip: str,
        runtime_name: str,
        clock: Callable[[], float],
        pressures: Callable[[], list[NodeCondition]],
        problems: Callable[[], list[str]],
        images: Callable[[], Awaitable[Sequence[cri.Image]]],
    ) -> None:
        self._config = config
        self._resources = resources
        self._clock = clock
        self._pressures, self._problems, self._images = pressures, problems, images
        self._ready_before: NodeCondition | None = None
        self._metadata = ObjectMeta(name=name, labels={**machine.node_labels(name), **labels})
        self._spec = NodeSpec(
            pod_cidr=config.pod_cidr, provider_id=config.provider_id, taints=config.register_with_taints
        )
        self._addresses = [
            NodeAddress(type="InternalIP", address=host_ip),
            NodeAddress(type="Hostname", address=name),
        ]
        self._info = machine.node_info(runtime_name)

    def current(self) -> Node:
        """The node with its capacity, allocatable and conditions of this moment, without images."""
        return Node(
            metadata=self._metadata,
            spec=self._spec,
            status=NodeStatus(
                capacity=self._resources.capacity(),
                allocatable=self._resources.allocatable(),
                addresses=self._addresses,
                conditions=[*self._pressures(), self._ready()],
                node_info=dict(self._info),
            ),
        )

    async def complete(self) -> Node:
        """As `current`, with images (without where the runtime doesn't answer)."""
        node = self.current()
        try:
            node.status.images = node_images(await self._images(), self._config.node_status_max_images)
        except KubengineError:
            node.status.images = None
        return node

    async def describe(self) -> dict[str, Any]:
        """A v1 Node as `kubectl get node -o json` prints it."""
        node = await self.complete()
        return {"apiVersion": node.api_version, "kind": node.kind, **to_builtins(node)}

    def _ready(self) -> NodeCondition:
        wrong = list(dict.fromkeys(self._problems()))
        now = whole_second(self._clock())
        status, before = "False" if wrong else "True", self._ready_before
        same = before is not None and before.status == status
        self._ready_before = NodeCondition(
            type="Ready",
            status=status,
            last_heartbeat_time=now,
            last_transition_time=before.last_transition_time if before is not None and same else now,
            reason="KubeletNotReady" if wrong else "KubeletReady",
            message=_aggregate(wrong) if wrong else "kubelet is posting ready status",
        )
        return self._ready_before


def _aggregate(errors: list[str]) -> str:
    """Several errors in one line, as Kubernetes joins them."""
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"


def node_images(images: Iterable[cri.Image], most: int) -> list[ContainerImage]:
    """The `most` largest images (-1: all), each with its first five names, digests before tags."""
    listed = [
        ContainerImage(names=[*image.repo_digests, *image.repo_tags][:NAMES_PER_IMAGE], size_bytes=image.size)
        for image in images
    ]
    listed.sort(key=lambda image: image.size_bytes, reverse=True)
    return listed if most == -1 else listed[:most]
