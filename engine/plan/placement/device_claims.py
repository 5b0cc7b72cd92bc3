"""Allocate the devices of pods' ResourceClaims while pods move: DynamicResources, v1.36.

A claim that no pod has any longer loses its devices, as the claim controller takes them, and gets others with
the next pod. A claim from a template is made again for each pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import structs

from engine.api.errors import InvalidInput
from engine.api.scheduling import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from engine.plan.claims.allocation import allocate
from engine.plan.claims.known import DynamicResources
from engine.plan.claims.objects import (
    AllocatedDevice,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    PlannedClaimSpec,
)
from engine.plan.claims.selectors import SelectorError
from engine.plan.placement.topology import Undecidable
from engine.plan.snapshot.columns import NO_NODE, TEMPLATE_CLAIM, Snapshot
from engine.plan.snapshot.node_labels import Nodes, labels_of_nodes

MOST_PODS = 256
"""Pods that one claim can be reserved for."""


@dataclass
class _Claim:
    """Track a claim: the pods that have it, its devices and the nodes that reach them."""

    name: str
    spec: PlannedClaimSpec
    pods: set[int] = field(default_factory=set)
    devices: list[AllocatedDevice] = field(default_factory=list)
    reach: NodeSelector | None = None
    before: tuple[int, list[AllocatedDevice], NodeSelector | None] | None = None
    """The node, devices and reach that it had until its last pod left."""


class DeviceClaims:
    """Follow the claims of pods; `names` has the text of `pods.device_claims` for each pod with claims."""

    def __init__(
        self,
        snapshot: Snapshot,
        known: DynamicResources,
        names: Mapping[int, str],
    ) -> None:
        self._snapshot, self._names, self._nodes = snapshot, names, labels_of_nodes(snapshot)
        self._inventory, self._demands = known.inventory(), known.demands
        self._by_name = {(one.metadata.namespace, one.metadata.name): one for one in known.claims}
        self._templates = {
            (one.metadata.namespace, one.metadata.name): one.spec.spec for one in known.templates
        }
        self._claims: dict[tuple[str, str] | tuple[int, str], _Claim] = {}
        for row in names:
            if row < snapshot.placed:
                for claim in self._known_claims(row):
                    claim.pods.add(row)

    def allowed(self, row: int) -> Nodes:
        """Return the nodes on which all claims of a pod have devices or get them. Raise `Undecidable`."""
        found = np.ones(self._snapshot.node_count, bool)
        new: list[_Claim] = []
        for claim in self._claims_of(row):
            if not claim.devices:
                new.append(claim)
            elif len(claim.pods) >= MOST_PODS:
                found[:] = False
            elif claim.reach is not None:
                found &= self._nodes.selected(claim.reach)
        if not new:
            return found
        spec = _joint([claim.spec for claim in new])
        if not spec.devices.requests:
            return found
        names = self._snapshot.node_names
        for node in np.flatnonzero(found).tolist():
            found[node] = self._inventory.may_serve(names[node]) and self._fits(spec, node)
        return found

    def enter(self, row: int, node: int) -> None:
        """Reserve the claims of a pod, and give those without devices the devices of its node."""
        if node == NO_NODE:
            return
        for claim in self._known_claims(row):
            if not claim.devices:
                self._allocate(claim, node)
            claim.pods.add(row)

    def leave(self, row: int, node: int) -> None:
        """Give back the devices of claims that no other pod has."""
        if node == NO_NODE:
            return
        for claim in self._known_claims(row):
            claim.pods.discard(row)
            if not claim.pods:
                claim.before = node, claim.devices, claim.reach
                for one in claim.devices:
                    self._inventory.release(one)
                claim.devices, claim.reach = [], None

    def _allocate(self, claim: _Claim, node: int) -> None:
        """Give a claim devices of a node: those that it had there if they are free, else the first to fit."""
        if claim.before is not None and claim.before[0] == node and self._inventory.are_free(claim.before[1]):
            _, claim.devices, claim.reach = claim.before
        else:
            name = self._snapshot.node_names[node]
            devices = self._inventory.of_node(name, self._nodes.of(node))
            try:
                picks = allocate(claim.spec, devices, self._demands) or []
            except (SelectorError, InvalidInput):
                picks = []
            claim.devices = [one.result for one in picks]
            local = any(self._inventory.is_local(one.device.key) for one in picks)
            claim.reach = _only(name) if local else None
        for one in claim.devices:
            self._inventory.use(one)

    def _fits(self, spec: PlannedClaimSpec, node: int) -> bool:
        devices = self._inventory.of_node(self._snapshot.node_names[node], self._nodes.of(node))
        try:
            return allocate(spec, devices, self._demands) is not None
        except (SelectorError, InvalidInput) as error:
            raise Undecidable(f"its device claims cannot be allocated: {error}") from None

    def _known_claims(self, row: int) -> list[_Claim]:
        """Return the claims of a pod; none if one of them is unknown."""
        try:
            return self._claims_of(row)
        except Undecidable:
            return []

    def _claims_of(self, row: int) -> list[_Claim]:
        """Return the claims of a pod. Raise `Undecidable`."""
        return [self._claim(row, name) for name in self._names.get(row, "").split()]

    def _claim(self, row: int, name: str) -> _Claim:
        """Return a claim of a pod; each pod has its own one from a template. Raise `Undecidable`."""
        namespace: str = self._snapshot.pods["namespace"][row].as_py()
        is_new = name.startswith(TEMPLATE_CLAIM)
        key = (row, name) if is_new else (namespace, name)
        if key not in self._claims:
            self._claims[key] = self._new(namespace, name.removeprefix(TEMPLATE_CLAIM), is_new)
        return self._claims[key]

    def _new(self, namespace: str, name: str, from_template: bool) -> _Claim:
        known = self._by_name.get((namespace, name))
        spec = self._templates.get((namespace, name)) if from_template else known.spec if known else None
        if spec is None:
            kind = "resource claim template" if from_template else "resource claim"
            raise Undecidable(f"{kind} {name} is not in the snapshot")
        try:
            self._demands.check(spec)
        except InvalidInput as error:
            raise Undecidable(f"{name}: {error}") from None
        claim = _Claim(name, spec)
        if known is not None and not from_template and known.status.allocation is not None:
            claim.devices, claim.reach = known.allocated, known.status.allocation.node_selector
        return claim


def _only(node: str) -> NodeSelector:
    named = NodeSelectorRequirement(key="metadata.name", operator="In", values=[node])
    return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[named])])


def _joint(specs: Sequence[PlannedClaimSpec]) -> PlannedClaimSpec:
    """Return one spec for all claims of a pod, which get devices together or not at all."""
    requests: list[DeviceRequest] = []
    constraints: list[DeviceConstraint] = []
    for number, spec in enumerate(specs):
        mine = spec.devices.requests or []
        requests += [structs.replace(one, name=f"{number}.{one.name}") for one in mine]
        for constraint in spec.devices.constraints or ():
            names = constraint.requests or [one.name for one in mine]
            constraints.append(structs.replace(constraint, requests=[f"{number}.{name}" for name in names]))
    return PlannedClaimSpec(devices=DeviceClaim(requests=requests, constraints=constraints))
