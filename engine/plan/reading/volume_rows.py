"""Collect storage claims and the nodes from which their volumes can be reached."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.api.objects.storage import PersistentVolumeSpec
from engine.api.scheduling import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from engine.api.struct import decode_hook
from engine.plan.reading.documents import ClaimDocument, VolumeDocument
from engine.plan.reading.templates import Unusable
from engine.plan.snapshot.columns import VOLUME_FIELDS

ZONE_LABELS = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
"""Labels of a volume that the scheduler compares with the node's; `__` separates several values."""

_spec = msgspec.json.Decoder(PersistentVolumeSpec, dec_hook=decode_hook)
_labels = msgspec.json.Decoder(dict[str, str] | None)


class VolumeRows:
    """Collect PersistentVolumeClaims and PersistentVolumes in any order, and join them at the end."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], str] = {}
        self._selectors: dict[str, NodeSelector | None] = {}

    def add_claim(self, claim: ClaimDocument) -> None:
        meta = claim.metadata
        self._claims[meta.namespace or "default", meta.name] = claim.spec.volume_name

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

    def table(self) -> pa.Table:
        """Return one row per claim, as described in `docs/snapshot-format.md`.

        A claim that is bound to an unknown volume has no `node_affinity` (null); the text "null" selects
        every node.
        """
        rows = []
        for (namespace, name), volume in self._claims.items():
            known = not volume or volume in self._selectors
            affinity = encode_json(self._selectors.get(volume)).decode() if known else None
            rows.append({"namespace": namespace, "claim": name, "volume": volume, "node_affinity": affinity})
        return pa.Table.from_pylist(rows, schema=pa.schema(list(VOLUME_FIELDS.items())))


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
