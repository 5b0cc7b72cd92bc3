"""Allocate devices for the ResourceClaims of pods that move: the plugin DynamicResources, v1.36.

When the last pod of a claim leaves its node, the claim is deallocated, as the ResourceClaim controller does.
The next pod that uses the claim gets it allocated again. A claim from a template belongs to one pod.
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

MAX_CONSUMERS = 256
"""How many pods a claim can be reserved for (`ResourceClaimReservedForMaxSize`)."""


@dataclass
class _Claim:
    """Track a claim: the pods that it is reserved for, its devices, and the nodes that reach them (None:
    all).

    `deallocated` is the node, devices and node selector that the claim had until its last pod left.
    """

    name: str
    spec: PlannedClaimSpec
    pods: set[int] = field(default_factory=set)
    devices: list[AllocatedDevice] = field(default_factory=list)
    reach: NodeSelector | None = None
    deallocated: tuple[int, list[AllocatedDevice], NodeSelector | None] | None = None


class DeviceClaims:
    """Allocate and deallocate the claims of pods that move.

    `names` maps the row of a pod to the names of its claims, separated by spaces (column `device_claims`).
    """

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

    def filter(self, row: int) -> Nodes:
        """Return bool[nodes]: the nodes on which all claims of a pod are allocated or can be. Raise
        `Undecidable`.
        """
        found = np.ones(self._snapshot.node_count, bool)
        new: list[_Claim] = []
        for claim in self._claims_of(row):
            if not claim.devices:
                new.append(claim)
            elif len(claim.pods) >= MAX_CONSUMERS:
                found[:] = False
            elif claim.reach is not None:
                found &= self._nodes.selected(claim.reach)
        if not new:
            return found
        spec = _combined([claim.spec for claim in new])
        if not spec.devices.requests:
            return found
        names = self._snapshot.node_names
        # `may_serve` is cheap and excludes most nodes; a search for devices may be exponential.
        for node in np.flatnonzero(found).tolist():
            found[node] = self._inventory.may_serve(names[node]) and self._fits(spec, node)
        return found

    def add_pod(self, row: int, node: int) -> None:
        """Reserve the claims of a pod, and allocate devices of its node to those that have none."""
        if node == NO_NODE:
            return
        for claim in self._known_claims(row):
            if not claim.devices:
                self._allocate(claim, node)
            claim.pods.add(row)

    def remove_pod(self, row: int, node: int) -> None:
        """Release the claims of a pod, and deallocate those that are reserved for no other pod."""
        if node == NO_NODE:
            return
        for claim in self._known_claims(row):
            claim.pods.discard(row)
            if not claim.pods:
                claim.deallocated = node, claim.devices, claim.reach
                for one in claim.devices:
                    self._inventory.release(one)
                claim.devices, claim.reach = [], None

    def _allocate(self, claim: _Claim, node: int) -> None:
        """Allocate a claim on a node: the devices that it had there if they are free, else the first that
        fit. Without devices that fit, the claim stays unallocated.
        """
        earlier = claim.deallocated
        # Without this, a move that is undone could leave the claim with other devices than before.
        if earlier is not None and earlier[0] == node and self._inventory.are_free(earlier[1]):
            _, claim.devices, claim.reach = earlier
        else:
            name = self._snapshot.node_names[node]
            devices = self._inventory.of_node(name, self._nodes.of(node))
            try:
                picks = allocate(claim.spec, devices, self._demands) or []
            except (SelectorError, InvalidInput):
                picks = []
            claim.devices = [one.result for one in picks]
            local = any(self._inventory.is_local(one.device.key) for one in picks)
            claim.reach = _selector_of_node(name) if local else None
        for one in claim.devices:
            self._inventory.use(one)

    def _fits(self, spec: PlannedClaimSpec, node: int) -> bool:
        """Return whether the free devices of a node meet a spec. Raise `Undecidable`."""
        devices = self._inventory.of_node(self._snapshot.node_names[node], self._nodes.of(node))
        try:
            return allocate(spec, devices, self._demands) is not None
        except (SelectorError, InvalidInput) as error:
            raise Undecidable(f"its device claims cannot be allocated: {error}") from None

    def _known_claims(self, row: int) -> list[_Claim]:
        """Return the claims of a pod; an empty list if the snapshot lacks one of them."""
        try:
            return self._claims_of(row)
        except Undecidable:
            return []

    def _claims_of(self, row: int) -> list[_Claim]:
        """Return the claims of a pod. Raise `Undecidable`."""
        return [self._claim(row, name) for name in self._names.get(row, "").split()]

    def _claim(self, row: int, name: str) -> _Claim:
        """Return a claim of a pod; a claim from a template is the pod's own. Raise `Undecidable`."""
        namespace: str = self._snapshot.pods["namespace"][row].as_py()
        from_template = name.startswith(TEMPLATE_CLAIM)
        key = (row, name) if from_template else (namespace, name)
        if key not in self._claims:
            self._claims[key] = self._create(namespace, name.removeprefix(TEMPLATE_CLAIM), from_template)
        return self._claims[key]

    def _create(self, namespace: str, name: str, from_template: bool) -> _Claim:
        """Return a claim with the allocation of the snapshot, or a new one from a template. Raise
        `Undecidable` for a claim or template that the snapshot lacks or the allocator cannot read.
        """
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


def _selector_of_node(node: str) -> NodeSelector:
    named = NodeSelectorRequirement(key="metadata.name", operator="In", values=[node])
    return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[named])])


def _combined(specs: Sequence[PlannedClaimSpec]) -> PlannedClaimSpec:
    """Return one spec with the requests of all claims of a pod: a node fits only if it can meet them all at
    once.
    """
    requests: list[DeviceRequest] = []
    constraints: list[DeviceConstraint] = []
    for number, spec in enumerate(specs):
        own = spec.devices.requests or []
        # Names of requests are unique within a claim only.
        requests += [structs.replace(one, name=f"{number}.{one.name}") for one in own]
        for constraint in spec.devices.constraints or ():
            names = constraint.requests or [one.name for one in own]
            constraints.append(structs.replace(constraint, requests=[f"{number}.{name}" for name in names]))
    return PlannedClaimSpec(devices=DeviceClaim(requests=requests, constraints=constraints))
