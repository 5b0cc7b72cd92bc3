"""Builds the Node object, with its capacity and allocatable: for admission, and for `/kubengine/node`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from engine.api.errors import InvalidInput, KubengineError
from engine.api.meta import ObjectMeta
from engine.api.node import (
    PROVIDED_IP,
    ContainerImage,
    Node,
    NodeCondition,
    NodeSpec,
    NodeStatus,
    Taint,
)
from engine.api.quantity import ZERO, Quantity
from engine.api.resources import is_extended
from engine.api.struct import to_builtins
from engine.api.timestamps import whole_second
from engine.cgroups.formulas.allocatable import without_huge_pages
from engine.cgroups.node_cgroups import NodeCgroups
from engine.devices.manager import DeviceManager
from engine.host.node_context import NodeContext
from engine.node.nodeinfo import machine
from engine.node.nodeinfo.addresses import HostAddresses
from engine.node.runtime_view.runtime_health import ShownFeatures
from engine.wire import cri_v1_pb2 as cri

NAMES_PER_IMAGE: Final = 5
UNINITIALIZED: Final = Taint(
    key="node.cloudprovider.kubernetes.io/uninitialized", value="true", effect="NoSchedule"
)
"""Keeps pods away until a cloud's controller has initialized the Node; the controller removes it."""
IMAGES_SECONDS: Final = 5.0
"""Seconds for which the Node waits for the runtime's list of images."""

DECLARED_FEATURES: Final = (
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
)
"""Features that the control plane may use on this node beyond those of every node (KEP-5328), unless their
gate is off.
"""


class NodeParts(msgspec.Struct, frozen=True):
    """Hold the parts of a running node that its description asks.

    `runtime` is the runtime's name and version. `pressures()` returns the pressure conditions, `problems()`
    the reasons why the node is not ready, `images()` the images of the runtime, and `volumes_in_use()` the
    names of the volumes that must not be detached.
    """

    addresses: HostAddresses
    runtime: str
    pressures: Callable[[], list[NodeCondition]]
    problems: Callable[[], list[str]]
    images: Callable[[], Awaitable[Sequence[cri.Image]]]
    features: Callable[[], ShownFeatures]
    volumes_in_use: Callable[[], list[str] | None]


class NodeDescription:
    """Describe the node as a v1 Node."""

    def __init__(
        self,
        context: NodeContext,
        parts: NodeParts,
        resources: NodeResources,
        *,
        external_cloud: bool = False,
    ) -> None:
        config, name = context.config, context.name
        addresses = parts.addresses
        labels = context.kubengine_config.node_labels or {}
        self._config = config
        self._parts = parts
        self._port = config.port if config.enable_server else 0
        self._resources = resources
        self._clock = context.clock
        self._ready_before: NodeCondition | None = None
        annotations = {PROVIDED_IP: addresses.provided()} if addresses.provided() else None
        own_labels = {**machine.node_labels(name), **labels}
        self._metadata = ObjectMeta(name=name, labels=own_labels, annotations=annotations)
        taints = [*(config.register_with_taints or ()), *([UNINITIALIZED] if external_cloud else ())]
        self._spec = NodeSpec(provider_id=config.provider_id, taints=taints or None)
        self._known: tuple[ObjectMeta, NodeSpec] | None = None
        self._extended: dict[str, Quantity] = {}
        self._addresses = addresses
        self._info = machine.node_info(parts.runtime)

    def adopt(self, metadata: ObjectMeta, spec: NodeSpec, status: Mapping[str, Any]) -> bool:
        """Adopt the labels, taints and extended resources of the API server's Node; return whether they
        changed. `status` is the JSON of `Node.status`.
        """
        before, before_spec = self._known or (self._metadata, self._spec)
        before_extended = self._extended
        self._known = metadata, spec
        self._extended = _extended_resources(status.get("allocatable"))
        judged = (metadata.labels, spec.taints, self._extended)
        return (before.labels, before_spec.taints, before_extended) != judged

    def own(self) -> Node:
        """Return the Node as `complete` does, without images and with the labels and taints given
        at start.
        """
        return msgspec.structs.replace(self.current(), metadata=self._metadata, spec=self._spec)

    def current(self) -> Node:
        """Return the Node with its current capacity, allocatable and conditions, without images."""
        metadata, spec = self._known or (self._metadata, self._spec)
        shown = self._parts.features()
        return Node(
            metadata=metadata,
            spec=spec,
            status=NodeStatus(
                capacity=self._resources.capacity(),
                allocatable=self._resources.allocatable(),
                addresses=self._addresses.listed(),
                conditions=[*self._parts.pressures(), self._ready()],
                node_info=self._info,
                daemon_endpoints={"kubeletEndpoint": {"Port": self._port}},
                runtime_handlers=shown.handlers,
                features=shown.features,
                declared_features=[name for name in DECLARED_FEATURES if self._config.gate(name, True)],
                volumes_in_use=self._parts.volumes_in_use(),
            ),
        )

    def judging(self) -> Node:
        """Return only what admission needs of the Node: labels, taints and allocatable."""
        metadata, spec = self._known or (self._metadata, self._spec)
        # The Node also has extended resources without a device plugin: other clients set their amounts.
        allocatable = {**self._extended, **self._resources.allocatable()}
        return Node(metadata=metadata, spec=spec, status=NodeStatus(allocatable=allocatable))

    async def complete(self) -> Node:
        """Return the Node with fresh addresses, and with images if the runtime lists them in time.

        A runtime that hangs must delay neither the node's status nor a reader of `/kubengine/node`.
        """
        # The addresses before the Node that lists them.
        await self._addresses.refresh()
        node = self.own()
        try:
            async with asyncio.timeout(IMAGES_SECONDS):
                node.status.images = node_images(
                    await self._parts.images(), self._config.node_status_max_images
                )
        except (KubengineError, TimeoutError):
            node.status.images = None
        return node

    async def describe(self) -> dict[str, Any]:
        """Return a v1 Node as `kubectl get node -o json` prints it."""
        node = await self.complete()
        return {"apiVersion": node.api_version, "kind": node.kind, **to_builtins(node)}

    def _ready(self) -> NodeCondition:
        wrong = list(dict.fromkeys(self._parts.problems()))
        now = whole_second(self._clock())
        status, before = "False" if wrong else "True", self._ready_before
        same = before is not None and before.status == status
        # The transition time changes with the status only; controllers count the time since then.
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
    """Join several errors in one line, as Kubernetes does."""
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"


def _extended_resources(allocatable: object) -> dict[str, Quantity]:
    """Return the extended resources of a Node's allocatable, without amounts that cannot be used."""
    found = {}
    for name, amount in allocatable.items() if isinstance(allocatable, dict) else ():
        with suppress(InvalidInput):
            quantity = Quantity.parse(str(amount))
            if is_extended(name) and quantity >= ZERO:
                found[name] = quantity
    return found


def node_images(images: Iterable[cri.Image], most: int) -> list[ContainerImage]:
    """Return the `most` largest images (-1: all), each with its first five names, digests before tags."""
    listed = [
        ContainerImage(names=[*image.repo_digests, *image.repo_tags][:NAMES_PER_IMAGE], size_bytes=image.size)
        for image in images
    ]
    # The largest, because the scheduler's ImageLocality weighs images by their size.
    listed.sort(key=lambda image: image.size_bytes, reverse=True)
    return listed if most == -1 else listed[:most]


class NodeResources:
    """Compute capacity and allocatable, on each call."""

    def __init__(
        self,
        machine: Mapping[str, Quantity],
        cgroups: NodeCgroups,
        devices: DeviceManager,
    ) -> None:
        self._machine = dict(machine)
        self._allocatable = without_huge_pages(cgroups.allocatable(), machine)
        self._devices = devices

    def capacity(self) -> dict[str, Quantity]:
        capacity, _, _ = self._devices.capacity()
        return {**self._machine, **_quantities(capacity)}

    def allocatable(self) -> dict[str, Quantity]:
        _, allocatable, _ = self._devices.capacity()
        return {**self._allocatable, **_quantities(allocatable)} if allocatable else dict(self._allocatable)


def _quantities(amounts: Mapping[str, int]) -> dict[str, Quantity]:
    return {name: Quantity.from_value(amount) for name, amount in amounts.items()}
