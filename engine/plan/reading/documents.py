"""The fields of nodes, pods and other documents that a plan needs; `msgspec` decodes them and skips all
others.

Fields whose values repeat stay undecoded (`Raw`): a cluster has few distinct values, so each is decoded once
(`templates`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta as Constraint
from msgspec import Raw

from engine.api.qos import MIRROR_ANNOTATION, SOURCE_ANNOTATION
from engine.tables import DO_NOT_PREEMPT_ANNOTATION

EMPTY = Raw(b"")


class DocumentStruct(msgspec.Struct, rename="camel", gc=False):
    """Decode only the declared fields."""


class Owner(DocumentStruct):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


_ANNOTATIONS = {
    "source": SOURCE_ANNOTATION,
    "mirror": MIRROR_ANNOTATION,
    "do_not_preempt": DO_NOT_PREEMPT_ANNOTATION,
}


class Annotations(msgspec.Struct, rename=_ANNOTATIONS, gc=False):
    source: str = "api"
    mirror: str | None = None
    do_not_preempt: str = ""


class Meta(DocumentStruct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: Raw = EMPTY
    annotations: Annotations | None = None
    owner_references: list[Owner] | None = None


class ContainerSpec(DocumentStruct):
    name: str = ""
    image: str = ""
    restart_policy: str | None = None
    resources: Raw = EMPTY
    ports: Raw = EMPTY


class ClaimName(DocumentStruct):
    claim_name: str = ""


class PodVolume(DocumentStruct):
    """Hold a volume, of which only the claim or the disk matters: it can tie the pod to some nodes. The
    claim of a generic `ephemeral` volume is made with the pod, and named after both.
    """

    name: str = ""
    persistent_volume_claim: ClaimName | None = None
    ephemeral: Raw = EMPTY
    aws_elastic_block_store: dict[str, Any] | None = None
    azure_disk: dict[str, Any] | None = None
    cinder: dict[str, Any] | None = None
    gce_persistent_disk: dict[str, Any] | None = None
    iscsi: dict[str, Any] | None = None
    portworx_volume: dict[str, Any] | None = None
    rbd: dict[str, Any] | None = None


class PodDeviceClaim(DocumentStruct):
    """Name a ResourceClaim of a pod: an existing one, or one that is made from a template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpecFields(DocumentStruct):
    containers: list[ContainerSpec] | None = None
    init_containers: list[ContainerSpec] | None = None
    node_name: str | None = ""
    priority: int | None = None
    overhead: Raw = EMPTY
    resources: Raw = EMPTY
    node_selector: Raw = EMPTY
    affinity: Raw = EMPTY
    tolerations: Raw = EMPTY
    topology_spread_constraints: Raw = EMPTY
    volumes: list[PodVolume] | None = None
    resource_claims: list[PodDeviceClaim] | None = None


class PodStatusFields(DocumentStruct):
    phase: str | None = ""
    qos_class: str | None = ""
    resource_claim_statuses: list[PodDeviceClaim] | None = None


_NO_META = Meta()
_NO_STATUS = PodStatusFields()


class PodDocument(DocumentStruct):
    """Hold a pod. A document with another `kind` than Pod, or none, is decoded again by its kind."""

    kind: str = ""
    metadata: Meta = msgspec.field(default_factory=lambda: _NO_META)
    spec: PodSpecFields | None = None
    status: PodStatusFields = msgspec.field(default_factory=lambda: _NO_STATUS)


class NodeInfoDocument(DocumentStruct):
    kubelet_version: str = ""
    operating_system: str = ""
    architecture: str = ""


class ConditionDocument(DocumentStruct):
    type: str = ""
    status: str = ""


class NodeImage(DocumentStruct):
    names: list[str] | None = None
    size_bytes: int = 0


class NodeStatusFields(DocumentStruct):
    capacity: Raw = EMPTY
    allocatable: Raw = EMPTY
    conditions: list[ConditionDocument] | None = None
    node_info: NodeInfoDocument = msgspec.field(default_factory=NodeInfoDocument)
    images: list[NodeImage] | None = None


class NodeSpecFields(DocumentStruct):
    unschedulable: bool = False
    taints: Raw = EMPTY


class NodeDocument(DocumentStruct):
    metadata: Meta
    spec: NodeSpecFields = msgspec.field(default_factory=NodeSpecFields)
    status: NodeStatusFields = msgspec.field(default_factory=NodeStatusFields)


class SelectorRequirement(DocumentStruct):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] | None = None


class LabelSelectorDocument(DocumentStruct):
    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorRequirement] | None = None


Count = Annotated[int, Constraint(ge=0, le=2**31 - 1)]
Share = Annotated[str, Constraint(pattern=r"^[0-9]{1,9}%?\Z")]


class BudgetSpec(DocumentStruct):
    min_available: Count | Share | None = None
    max_unavailable: Count | Share | None = None
    selector: LabelSelectorDocument | None = None


class BudgetDocument(DocumentStruct):
    """Hold a PodDisruptionBudget."""

    metadata: Meta
    spec: BudgetSpec


class PriorityClassDocument(DocumentStruct):
    metadata: Meta
    value: int
    preemption_policy: str = ""


class ClaimSpec(DocumentStruct):
    volume_name: str = ""
    storage_class_name: str | None = None


class ClaimDocument(DocumentStruct):
    """Hold a PersistentVolumeClaim."""

    metadata: Meta
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)


class VolumeDocument(DocumentStruct):
    """Hold a PersistentVolume."""

    metadata: Meta
    spec: Raw = EMPTY


class StorageClassDocument(DocumentStruct):
    metadata: Meta
    provisioner: str = ""


class AttachableCount(DocumentStruct):
    count: Count | None = None


class LimitedDriver(DocumentStruct):
    name: str
    allocatable: AttachableCount | None = None


class LimitedDrivers(DocumentStruct):
    drivers: list[LimitedDriver] | None = None


class CSINodeDocument(DocumentStruct):
    metadata: Meta
    spec: LimitedDrivers = msgspec.field(default_factory=LimitedDrivers)


class Head(DocumentStruct):
    """Hold the fields that identify a document: its kind, or the first field of documents without a kind."""

    kind: str = ""
    api_version: str = ""
    metadata: Meta = msgspec.field(default_factory=lambda: _NO_META)
    status: Raw = EMPTY
    value: Raw = EMPTY
    kubeletconfig: Raw = EMPTY
    node: Raw = EMPTY
    pods: Raw = EMPTY
    images: Raw = EMPTY
    containers: Raw = EMPTY
    nodes: Raw = EMPTY
    cpus: Raw = EMPTY
    processors: Raw = EMPTY
    default_cpu_set: Raw = EMPTY
    machine_state: Raw = EMPTY
    resources: Raw = EMPTY
    pod_resources: Raw = EMPTY
    pod_resources_snake: Raw = msgspec.field(default=EMPTY, name="pod_resources")
    data: Raw = msgspec.field(default=EMPTY, name="Data")
    checksum: Raw = msgspec.field(default=EMPTY, name="Checksum")
