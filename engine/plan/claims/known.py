"""Read the dynamic resources of a snapshot, and claims and taint rules of manifests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.api.documents import as_written, parse_documents, read_text
from engine.api.errors import InvalidInput
from engine.api.struct import decode_hook
from engine.plan.claims.allocation import Demands
from engine.plan.claims.objects import (
    KINDS,
    DeviceClass,
    DeviceTaintRule,
    OfferedSlice,
    PlannedClaim,
    ResourceClaimTemplate,
    as_v1,
)
from engine.plan.claims.pools import DeviceInventory
from engine.plan.snapshot.columns import Snapshot

ADD_SLICES = (
    "the snapshot has no ResourceSlices: add "
    "resourceslices,resourceclaims,deviceclasses (and devicetaintrules) to kubectl get"
)

T = TypeVar("T")


@dataclass(frozen=True)
class DynamicResources:
    """Hold the slices, claims, classes and taint rules of a cluster."""

    slices: list[OfferedSlice]
    claims: list[PlannedClaim]
    classes: dict[str, DeviceClass]
    rules: list[DeviceTaintRule]
    templates: list[ResourceClaimTemplate]

    def inventory(self, *more: DeviceTaintRule) -> DeviceInventory:
        """Return the offered devices and their use, with the taints of the rules and of `more`."""
        return DeviceInventory(self.slices, self.claims, [*self.rules, *more])

    @property
    def demands(self) -> Demands:
        return Demands(self.classes)


def dynamic_resources(snapshot: Snapshot) -> DynamicResources:
    """Decode what the snapshot has. Raise `InvalidInput` if there are no slices."""
    found: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    decoders = {kind: msgspec.json.Decoder(struct, dec_hook=decode_hook) for kind, struct in KINDS.items()}
    for number, row in enumerate(snapshot.dynamic_resources.to_pylist()):
        kind = row["kind"]
        if kind not in decoders:
            raise InvalidInput(f"unknown kind {kind!r}", subject=f"dynamic_resources.kind[{number}]")
        try:
            found[kind].append(decoders[kind].decode(row["document"]))
        except (msgspec.DecodeError, InvalidInput, RecursionError) as error:
            raise InvalidInput(str(error), subject=f"dynamic_resources.document[{number}]") from None
    if not found["ResourceSlice"]:
        raise InvalidInput(ADD_SLICES, subject="snapshot")
    return DynamicResources(
        found["ResourceSlice"],
        found["ResourceClaim"],
        {each.metadata.name: each for each in found["DeviceClass"]},
        found["DeviceTaintRule"],
        found["ResourceClaimTemplate"],
    )


def claims_of_file(path: str) -> list[PlannedClaim]:
    """Read ResourceClaims and ResourceClaimTemplates from a manifest; other objects are ignored.

    Raise `InvalidInput` with the path if there are none.
    """
    claims: list[PlannedClaim] = []
    for kind, document in _documents(path):
        if kind == "ResourceClaim":
            claims.append(as_written(document, PlannedClaim, path))
        elif kind == "ResourceClaimTemplate":
            template = as_written(document, ResourceClaimTemplate, path)
            claims.append(PlannedClaim(metadata=template.metadata, spec=template.spec.spec))
    if not claims:
        raise InvalidInput("has neither a ResourceClaim nor a ResourceClaimTemplate", subject=path)
    return claims


def rules_of_file(path: str) -> list[DeviceTaintRule]:
    """Read DeviceTaintRules. Raise `InvalidInput` with the path if there are none."""
    rules = [
        as_written(document, DeviceTaintRule, path)
        for kind, document in _documents(path)
        if kind == "DeviceTaintRule"
    ]
    if not rules:
        raise InvalidInput("has no DeviceTaintRule", subject=path)
    return rules


def _documents(path: str) -> list[tuple[str, dict[str, Any]]]:
    documents = parse_documents(read_text(Path(path)), path)
    named = ((str(each.get("kind", "")), each) for each in documents)
    return [(kind, as_v1(kind, each)) for kind, each in named]
