"""Collect storage claims, the nodes that reach their volumes, and how many volumes a node attaches."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.api.meta import ObjectMeta
from engine.api.objects.storage import CSIPersistentVolume, PersistentVolume, PersistentVolumeSpec
from engine.api.scheduling import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from engine.api.struct import decode_hook
from engine.csi.migration import DRIVERS, migrated
from engine.plan.reading.documents import (
    ClaimDocument,
    ClaimSpec,
    CSINodeDocument,
    StorageClassDocument,
    VolumeDocument,
)
from engine.plan.reading.templates import Unusable
from engine.plan.snapshot.columns import ATTACH_LIMIT_FIELDS, VOLUME_FIELDS

ZONE_LABELS = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
"""Labels of a volume that the scheduler compares with the node's; `__` separates several values."""

IN_TREE = "kubernetes.io/"
COUNTED = {
    plugin: DRIVERS[plugin]
    for plugin in (
        "kubernetes.io/aws-ebs",
        "kubernetes.io/azure-disk",
        "kubernetes.io/cinder",
        "kubernetes.io/gce-pd",
        "kubernetes.io/portworx-volume",
    )
}
"""The in-tree plugins whose volumes the scheduler counts for the driver that replaces them."""

_spec = msgspec.json.Decoder(PersistentVolumeSpec, dec_hook=decode_hook)
_labels = msgspec.json.Decoder(dict[str, str] | None)


class VolumeRows:
    """Collect PersistentVolumeClaims and PersistentVolumes in any order, and join them at the end."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], ClaimSpec] = {}
        self._selectors: dict[str, NodeSelector | None] = {}
        self._handles: dict[str, tuple[str, str]] = {}
        self._provisioners: dict[str, str] = {}
        self._limits: dict[tuple[str, str], int] = {}

    def add_claim(self, claim: ClaimDocument) -> None:
        meta = claim.metadata
        self._claims[meta.namespace or "default", meta.name] = claim.spec

    def add_class(self, storage_class: StorageClassDocument) -> None:
        self._provisioners[storage_class.metadata.name] = storage_class.provisioner

    def add_csi_node(self, node: CSINodeDocument) -> None:
        for driver in node.spec.drivers or ():
            if driver.allocatable is not None and driver.allocatable.count is not None:
                self._limits[node.metadata.name, driver.name] = driver.allocatable.count

    def add_volume(self, volume: VolumeDocument) -> None:
        """Add a volume. Raise `Unusable` with the faulty field as subject."""
        try:
            spec = _spec.decode(bytes(volume.spec) or b"{}")
        except (msgspec.DecodeError, InvalidInput, RecursionError) as error:
            raise Unusable(str(error), subject="spec") from None
        try:
            labels = _labels.decode(bytes(volume.metadata.labels) or b"null") or {}
        except msgspec.DecodeError as error:
            raise Unusable(str(error), subject="metadata.labels") from None
        required = spec.node_affinity.required if spec.node_affinity is not None else None
        self._selectors[volume.metadata.name] = _with_zones(required, labels)
        csi = _csi(PersistentVolume(metadata=ObjectMeta(name=volume.metadata.name, labels=labels), spec=spec))
        if csi is not None:
            self._handles[volume.metadata.name] = csi.driver, csi.volume_handle

    def table(self) -> pa.Table:
        """Return one row per claim, as described in `docs/snapshot-format.md`.

        A claim that is bound to an unknown volume has no `node_affinity` (null); the text "null" selects
        every node. A claim without a volume gets one from its class: it counts under a handle of its own.
        """
        rows = []
        for (namespace, name), spec in self._claims.items():
            volume = spec.volume_name
            provisioner = self._provisioners.get(spec.storage_class_name or "", "")
            if provisioner.startswith(IN_TREE):
                provisioner = COUNTED.get(provisioner, "")
            driver, handle = self._handles.get(volume, ("", ""))
            if volume not in self._selectors and provisioner:
                driver, handle = provisioner, f"{namespace}/{name}"
            known = not volume or volume in self._selectors
            affinity = encode_json(self._selectors.get(volume)).decode() if known else None
            row = {"namespace": namespace, "claim": name, "volume": volume, "node_affinity": affinity}
            rows.append(row | {"driver": driver, "handle": handle})
        return pa.Table.from_pylist(rows, schema=pa.schema(list(VOLUME_FIELDS.items())))

    def limit_table(self) -> pa.Table:
        """Return one row per node and driver with a limit."""
        rows = [
            {"node": node, "driver": driver, "limit": limit} for (node, driver), limit in self._limits.items()
        ]
        return pa.Table.from_pylist(rows, schema=pa.schema(list(ATTACH_LIMIT_FIELDS.items())))


def _csi(volume: PersistentVolume) -> CSIPersistentVolume | None:
    """Return the driver and handle under which a node attaches a volume; None if it counts for no driver."""
    if volume.spec.csi is not None:
        return volume.spec.csi
    try:
        found = migrated(volume).spec.csi
    except InvalidInput:
        return None
    return found if found is not None and found.driver in COUNTED.values() else None


def _with_zones(required: NodeSelector | None, labels: dict[str, str]) -> NodeSelector | None:
    """Combine a volume's node affinity and its zone labels into the nodes that both allow."""
    zones = [
        NodeSelectorRequirement(key=name, operator="In", values=labels[name].split("__"))
        for name in ZONE_LABELS
        if name in labels
    ]
    if not zones:
        return required
    terms = required.node_selector_terms or [] if required is not None else [NodeSelectorTerm()]
    return NodeSelector(
        node_selector_terms=[
            NodeSelectorTerm(
                match_expressions=[*(term.match_expressions or ()), *zones], match_fields=term.match_fields
            )
            for term in terms
        ]
    )
