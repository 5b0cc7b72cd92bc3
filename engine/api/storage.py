"""Claims of storage and what they are bound to, as far as a node reads them."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.api.meta import ObjectMeta
from engine.api.pod import HostPathVolume, NodeSelector
from engine.api.struct import Struct

FILESYSTEM, BLOCK = "Filesystem", "Block"


class PersistentVolumeClaimSpec(Struct):
    volume_name: str = ""
    volume_mode: str = FILESYSTEM


class PersistentVolumeClaimStatus(Struct):
    phase: str = ""


class PersistentVolumeClaim(Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PersistentVolumeClaimSpec = msgspec.field(default_factory=PersistentVolumeClaimSpec)
    status: PersistentVolumeClaimStatus = msgspec.field(default_factory=PersistentVolumeClaimStatus)


class ClaimReference(Struct):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class LocalVolume(Struct):
    """A directory of one node."""

    path: str = ""
    fs_type: str | None = None


class VolumeNodeAffinity(Struct):
    required: NodeSelector | None = None


class PersistentVolumeSpec(Struct):
    """Of its sources those that a node mounts by itself; `csi` names a driver."""

    host_path: HostPathVolume | None = None
    local: LocalVolume | None = None
    csi: dict[str, Any] | None = None
    claim_ref: ClaimReference | None = None
    volume_mode: str = FILESYSTEM
    node_affinity: VolumeNodeAffinity | None = None


class PersistentVolume(Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PersistentVolumeSpec = msgspec.field(default_factory=PersistentVolumeSpec)
