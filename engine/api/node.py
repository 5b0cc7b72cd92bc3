"""The Node: what it has, what is left for pods, its labels, taints and conditions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from engine.api.meta import ObjectMeta
from engine.api.quantity import Quantity
from engine.api.struct import Struct

PROVIDED_IP = "alpha.kubernetes.io/provided-node-ip"
"""Annotation: the addresses of `--node-ip`, for a cloud's controller."""


class Taint(Struct):
    key: str
    effect: str
    value: str = ""
    time_added: datetime | None = None


class NodeSpec(Struct):
    pod_cidr: str = ""
    pod_cidrs: list[str] | None = msgspec.field(default=None, name="podCIDRs")
    provider_id: str = ""
    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeCondition(Struct):
    type: str
    status: str
    last_heartbeat_time: datetime | None = None
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class NodeAddress(Struct):
    type: str
    address: str


class ContainerImage(Struct):
    names: list[str] | None = None
    size_bytes: int = 0


class NodeStatus(Struct):
    """Hold the status of a Node; `daemon_endpoints`, `runtime_handlers` and `features` are plain JSON."""

    capacity: dict[str, Quantity] | None = None
    allocatable: dict[str, Quantity] | None = None
    conditions: list[NodeCondition] | None = None
    addresses: list[NodeAddress] | None = None
    node_info: dict[str, Any] | None = None
    images: list[ContainerImage] | None = None
    daemon_endpoints: dict[str, Any] | None = None
    runtime_handlers: list[dict[str, Any]] | None = None
    features: dict[str, bool] | None = None
    declared_features: list[str] | None = None
    volumes_in_use: list[str] | None = None


class Node(Struct):
    """Represent a core/v1 Node."""

    api_version: str = "v1"
    kind: str = "Node"
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def allocatable(self) -> dict[str, Quantity]:
        return self.status.allocatable or {}
