"""Types of storage claims and their volumes, as far as a node reads them."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.api.meta import ObjectMeta
from engine.api.pod import HostPathVolume, ResourceList, ResourceRequirements
from engine.api.references import FCVolume, ISCSIVolume, NFSVolume, SecretReference
from engine.api.scheduling import NodeSelector
from engine.api.struct import Struct

FILESYSTEM, BLOCK = "Filesystem", "Block"
READ_WRITE_ONCE, READ_WRITE_ONCE_POD = "ReadWriteOnce", "ReadWriteOncePod"
READ_ONLY_MANY, READ_WRITE_MANY = "ReadOnlyMany", "ReadWriteMany"


class PersistentVolumeClaimSpec(Struct):
    volume_name: str = ""
    volume_mode: str = FILESYSTEM
    access_modes: list[str] | None = None
    resources: ResourceRequirements = msgspec.field(default_factory=ResourceRequirements)


class PersistentVolumeClaimStatus(Struct):
    """Hold the status of a claim.

    `capacity` is the current size of the file system; during a resize, `allocated_resources` is the target
    and `allocated_resource_statuses` the progress.
    """

    phase: str = ""
    capacity: ResourceList | None = None
    allocated_resources: ResourceList | None = None
    allocated_resource_statuses: dict[str, str] | None = None
    conditions: list[dict[str, Any]] | None = None


class PersistentVolumeClaim(Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PersistentVolumeClaimSpec = msgspec.field(default_factory=PersistentVolumeClaimSpec)
    status: PersistentVolumeClaimStatus = msgspec.field(default_factory=PersistentVolumeClaimStatus)


class ClaimReference(Struct):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class LocalVolume(Struct):
    """Name a directory of one node."""

    path: str = ""
    fs_type: str | None = None


class VolumeNodeAffinity(Struct):
    required: NodeSelector | None = None


class CSIPersistentVolume(Struct):
    """Identify a volume of a driver by its handle, and say how to mount it."""

    driver: str = ""
    volume_handle: str = ""
    read_only: bool = False
    fs_type: str = ""
    volume_attributes: dict[str, str] | None = None
    node_stage_secret_ref: SecretReference | None = None
    node_publish_secret_ref: SecretReference | None = None
    node_expand_secret_ref: SecretReference | None = None


class AWSElasticBlockStore(Struct):
    volume_id: str = msgspec.field(default="", name="volumeID")
    fs_type: str = ""
    partition: int = 0
    read_only: bool = False


class AzureDisk(Struct):
    disk_uri: str = msgspec.field(default="", name="diskURI")
    caching_mode: str | None = None
    fs_type: str | None = None
    read_only: bool | None = None
    kind: str | None = None


class AzureFile(Struct):
    secret_name: str = ""
    share_name: str = ""
    read_only: bool = False
    secret_namespace: str | None = None


class GCEPersistentDisk(Struct):
    pd_name: str = ""
    fs_type: str = ""
    partition: int = 0
    read_only: bool = False


class CinderVolume(Struct):
    volume_id: str = msgspec.field(default="", name="volumeID")
    fs_type: str = ""
    read_only: bool = False


class VsphereVolume(Struct):
    volume_path: str = ""
    fs_type: str = ""
    storage_policy_name: str = ""


class PortworxVolume(Struct):
    volume_id: str = msgspec.field(default="", name="volumeID")
    fs_type: str = ""
    read_only: bool = False


class PersistentVolumeSpec(Struct):
    """Describe a volume: the sources that a node mounts, and those that stand for a CSI driver's."""

    host_path: HostPathVolume | None = None
    local: LocalVolume | None = None
    csi: CSIPersistentVolume | None = None
    nfs: NFSVolume | None = None
    iscsi: ISCSIVolume | None = None
    fc: FCVolume | None = None
    aws_elastic_block_store: AWSElasticBlockStore | None = None
    azure_disk: AzureDisk | None = None
    azure_file: AzureFile | None = None
    cinder: CinderVolume | None = None
    gce_persistent_disk: GCEPersistentDisk | None = None
    portworx_volume: PortworxVolume | None = None
    vsphere_volume: VsphereVolume | None = None
    claim_ref: ClaimReference | None = None
    volume_mode: str = FILESYSTEM
    node_affinity: VolumeNodeAffinity | None = None
    access_modes: list[str] | None = None
    mount_options: list[str] | None = None
    capacity: ResourceList | None = None


class PersistentVolume(Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PersistentVolumeSpec = msgspec.field(default_factory=PersistentVolumeSpec)


class StorageTokenRequest(Struct):
    """Ask for a service account token of each pod; an empty `audience` means the API server's own."""

    audience: str = ""
    expiration_seconds: int | None = None


class CSIDriverSpec(Struct):
    """Describe a driver.

    `volume_lifecycle_modes` may contain Persistent and Ephemeral. `fs_group_policy` is
    ReadWriteOnceWithFSType, File or None.
    """

    attach_required: bool | None = None
    pod_info_on_mount: bool | None = None
    volume_lifecycle_modes: list[str] | None = None
    fs_group_policy: str | None = None
    token_requests: list[StorageTokenRequest] | None = None
    requires_republish: bool | None = None
    service_account_token_in_secrets: bool | None = None
    node_allocatable_update_period_seconds: int | None = None
    se_linux_mount: bool | None = None


class CSIDriver(Struct):
    """Hold the properties of a driver in the cluster (storage.k8s.io/v1)."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: CSIDriverSpec = msgspec.field(default_factory=CSIDriverSpec)


class VolumeError(Struct):
    """Hold an error of an attachment; `error_code` is the gRPC status of the driver's controller."""

    message: str = ""
    error_code: int | None = None


class VolumeAttachmentStatus(Struct):
    attached: bool = False
    attachment_metadata: dict[str, str] | None = None
    attach_error: VolumeError | None = None


class VolumeAttachment(Struct):
    """Represent the attachment of a volume to a node (storage.k8s.io/v1)."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    status: VolumeAttachmentStatus = msgspec.field(default_factory=VolumeAttachmentStatus)


class CSINodeAllocatable(Struct):
    count: int | None = None


class CSINodeDriver(Struct):
    """Describe a driver on one node, which the driver calls `node_id`."""

    name: str
    node_id: str
    topology_keys: list[str] | None = None
    allocatable: CSINodeAllocatable | None = None


class CSINodeSpec(Struct):
    """List the drivers; an API server writes null if there are none."""

    drivers: list[CSINodeDriver] | None = None


class CSINode(Struct):
    """List the drivers of one node (storage.k8s.io/v1)."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: CSINodeSpec = msgspec.field(default_factory=CSINodeSpec)
