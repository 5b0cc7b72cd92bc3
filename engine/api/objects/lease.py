"""coordination.k8s.io/v1 Lease: a node's sign of life."""

from __future__ import annotations

import msgspec

from engine.api.meta import ObjectMeta
from engine.api.struct import Struct


class LeaseSpec(Struct):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    renew_time: str = ""  # MicroTime always has six digits after the point


class Lease(Struct):
    api_version: str = msgspec.field(default="", name="apiVersion")
    kind: str = ""
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
