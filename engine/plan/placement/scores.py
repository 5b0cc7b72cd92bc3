"""Score nodes for one pod as the default profile of the scheduler does, v1.36.

Nodes that pass the filters get the weighted sum of TaintToleration (3), NodeAffinity (2), PodTopologySpread
(2), InterPodAffinity (2), NodeResourcesFit by least allocated (1), NodeResourcesBalancedAllocation (1) and
ImageLocality (1). The scheduler draws among equal nodes. In clusters of 100 nodes or more it scores only some
of them; here all are scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine._fast.placement.node_amounts import scores_by_amounts, sums_on_nodes
from engine.admission.selectors import selects_labels, tolerates
from engine.api.pod import Pod, ResourceRequirements
from engine.api.quantity import Quantity
from engine.api.resources import pod_requests, scaled
from engine.api.scheduling import (
    NodeSelector,
    PodAffinity,
    PodAffinityTerm,
    WeightedPodAffinityTerm,
)
from engine.plan.placement.constraints import Constraints
from engine.plan.placement.image_sizes import image_sizes
from engine.plan.placement.node_capacity import NodeCapacity
from engine.plan.placement.spread import MOST, SpreadScores
from engine.plan.placement.topology import PodRows, Undecidable
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.kept import once_per_snapshot
from engine.plan.snapshot.lazy_table import value_of
from engine.plan.snapshot.node_labels import Nodes
from engine.plan.snapshot.objects import decoded_spec

MOST_TEMPLATES: Final = 4
"""Templates whose scores are kept: pods that follow one another often have the same one."""
SOFT: Final = "PreferNoSchedule"
ASSUMED: Final = {"cpu": Quantity.parse("100m"), "memory": Quantity.parse("200Mi")}
"""Requests that the scheduler assumes for a container without any when it scores by least allocated."""
HARD_AFFINITY_WEIGHT: Final = 1
SMALLEST_IMAGES: Final = 23 * 2**20
LARGEST_IMAGE: Final = 1000 * 2**20

Values = NDArray[np.int64]


@dataclass
class _TemplateScores:
    """Hold what the pods of a template share, int64[nodes] each: scores by images, those together with scores
    by amounts (`fixed`), and counts that are normalized among the candidates, None if all are 0.
    """

    request: Values
    images: Values
    fixed: Values
    soft_taints: Values | None
    preferred: Values | None


class NodeScores:
    """Score nodes while pods move: `take` follows what `NodeCapacity` does not count, assumed requests."""

    def __init__(self, snapshot: Snapshot, capacity: NodeCapacity, constraints: Constraints) -> None:
        self._snapshot, self._capacity, self._constraints = snapshot, capacity, constraints
        self._template: NDArray[np.int32] = snapshot.pods["template"].to_numpy()
        self._terms: dict[int, list[tuple[int, PodAffinityTerm]]] = {}
        self._sizes: dict[str, Values] = {}
        self._spread = SpreadScores(snapshot, constraints)
        self._known: dict[int, _TemplateScores] = {}
        allocatable = np.stack([snapshot.allocatable(name) for name in ASSUMED])
        self._allocatable: Values = np.maximum(allocatable, 0)
        self._assumed: dict[int, Values] = {}
        requested = self._capacity.total[:2] - self._capacity.free[:2]
        self._used: Values = requested + assumed_on_nodes(snapshot)

    def take(self, row: int, node: int, sign: int = 1) -> None:
        """Count a pod on a node, or no longer with `sign` -1; the capacity counts it already."""
        self._used[:, node] += sign * self._assumed_of(int(self._template[row]))
        one = np.array([node])
        for template, known in self._known.items():
            known.fixed[node] = known.images[node] + self._by_amounts(template, known.request, one)[0]

    def best(self, row: int, request: Values, nodes: Nodes) -> Values:
        """Return those of `nodes`, bool[nodes], that have the highest score for a pod, in ascending order."""
        pod, known = self._constraints.pod(row), self._of_template(row, request)
        total = known.fixed
        # Without soft taints every node gets 100, which chooses none of them.
        if known.soft_taints is not None:
            total = total + 3 * (MOST - _normalized(known.soft_taints, nodes))
        if known.preferred is not None:
            total = total + 2 * _normalized(known.preferred, nodes)
        near = self._near(row, pod, nodes)
        if near is not None:
            total = total + 2 * near
        return self._spread.best(total, row, pod, nodes)

    def _of_template(self, row: int, request: Values) -> _TemplateScores:
        """Return what the pods of a template have in common; `take` keeps it for pods that follow."""
        template = int(self._template[row])
        known = self._known.get(template)
        if known is None:
            pod = self._constraints.pod(row)
            images = self._images(pod)
            fixed = images + self._by_amounts(template, request)
            soft, preferred = self._soft_taints(pod), self._preferred_nodes(pod)
            known = _TemplateScores(
                request, images, fixed, soft if soft.any() else None, preferred if preferred.any() else None
            )
            while len(self._known) >= MOST_TEMPLATES:
                del self._known[next(iter(self._known))]
            self._known[template] = known
        return known

    def _by_amounts(self, template: int, request: Values, nodes: Values | None = None) -> Values:
        """Score these nodes, or all, by least allocated and by balance."""
        capacity, assumed = self._capacity, self._assumed_of(template)
        return scores_by_amounts(
            capacity.total, capacity.free, self._allocatable, self._used, request, assumed, nodes
        )

    def _assumed_of(self, template: int) -> Values:
        """Return int64[2]: milli-CPU and bytes of a template with assumed requests."""
        found = self._assumed.get(template)
        if found is None:
            found = self._assumed[template] = assumed_requests(self._snapshot, template)
        return found

    def _soft_taints(self, pod: Pod) -> Values:
        """Return int64[nodes]: how many soft taints of each node a pod does not tolerate."""
        distinct, codes = self._constraints.nodes.taint_sets
        tolerations = pod.spec.tolerations or ()
        counts = [
            sum(taint.effect == SOFT and not tolerates(tolerations, taint) for taint in taints)
            for taints in distinct
        ]
        found: Values = np.array(counts, np.int64)[codes]
        return found

    def _preferred_nodes(self, pod: Pod) -> Values:
        """Return int64[nodes]: the weights of preferred node affinity that match."""
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
        terms = (
            affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else None
        )
        found = np.zeros(self._snapshot.node_count, np.int64)
        for term in terms or ():
            selector = NodeSelector(node_selector_terms=[term.preference])
            found += term.weight * self._constraints.nodes.selected(selector)
        return found

    def _near(self, row: int, pod: Pod, nodes: Nodes) -> Values | None:
        """Score preferred affinity between pods, in both directions, and required affinity of others; None
        if there is none.
        """
        preferences = _preferences(pod)
        if not preferences and not self._attracting:
            return None
        topology = self._constraints.topology
        own, labels = (topology.namespace_of(row),), topology.labels_of(row)
        sums = np.zeros(self._snapshot.node_count, np.int64)
        for weight, term in preferences:
            try:
                pods = topology.selected(term, own)
            except Undecidable:
                continue
            sums += weight * self._in_domain(term.topology_key, pods)
        for template in self._attracting:
            for weight, term in self._terms_of(template):
                if not selects_labels(term.label_selector, labels):
                    continue
                pods = topology.of_template(template)
                try:
                    spaces = topology.spaces(term, ())
                except Undecidable:
                    continue
                if spaces is not None and own[0] not in spaces:
                    if spaces:
                        continue
                    pods = topology.in_namespaces(pods, own)
                sums += weight * self._in_domain(term.topology_key, pods)
        among = sums[nodes]
        low, span = int(among.min()), int(among.max() - among.min())
        return (MOST * ((sums - low) / span)).astype(np.int64) if span else None

    def _in_domain(self, key: str, pods: PodRows) -> Values:
        topology = self._constraints.topology
        counts = np.append(topology.on_domains(key, pods), 0)
        found: Values = counts[topology.domains_of(key)[0]]
        return found

    @cached_property
    def _attracting(self) -> list[int]:
        """Return templates with terms that score later pods: preferred ones, and required affinity."""
        specs = self._snapshot.templates["spec"].to_pylist()
        return [row for row, spec in enumerate(specs) if "podA" in spec and self._terms_of(row)]

    def _terms_of(self, template: int) -> list[tuple[int, PodAffinityTerm]]:
        found = self._terms.get(template)
        if found is None:
            pod = decoded_spec(self._snapshot.templates["spec"][template].as_py())
            affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
            hard = affinity.required_during_scheduling_ignored_during_execution if affinity else None
            found = [(HARD_AFFINITY_WEIGHT, term) for term in hard or ()]
            found += _preferences(pod)
            self._terms[template] = found
        return found

    def _images(self, pod: Pod) -> Values:
        """Return int64[nodes]: the score by the images that a node has."""
        if not self._snapshot.images.num_rows:
            return np.zeros(self._snapshot.node_count, np.int64)
        containers = [*pod.spec.containers, *pod.init_containers]
        sums = sum(
            (self._image(one.image) for one in containers), np.zeros(self._snapshot.node_count, np.int64)
        )
        most = LARGEST_IMAGE * len(containers)
        clipped = np.clip(sums, SMALLEST_IMAGES, most)
        found: Values = MOST * (clipped - SMALLEST_IMAGES) // (most - SMALLEST_IMAGES)
        return found

    def _image(self, name: str) -> Values:
        """Return int64[nodes]: the size of an image where it is, scaled by how many nodes have it."""
        if ":" not in name.rpartition("/")[2]:
            name += ":latest"
        found = self._sizes.get(name)
        if found is None:
            sizes = image_sizes(self._snapshot).of(name)
            share = np.count_nonzero(sizes >= 0) / max(len(sizes), 1)
            # As in the scheduler, an image that few nodes have counts little: pods would otherwise gather on
            # those nodes.
            found = self._sizes[name] = (np.maximum(sizes, 0) * share).astype(np.int64)
        return found


@once_per_snapshot
def assumed_on_nodes(snapshot: Snapshot) -> Values:
    """Return int64[2, nodes]: how much more the pods of each node have with assumed requests."""
    template = snapshot.column("template")
    more = np.zeros((snapshot.templates.num_rows, 2), np.int64)
    requests = np.stack([snapshot.templates[f"request/{name}"].to_numpy() for name in ASSUMED], axis=1)
    specs = snapshot.templates["spec"].to_pylist()
    for number in np.flatnonzero(np.bincount(template)).tolist():
        more[number] = _assumed_requests(specs[number], requests[number]) - requests[number]
    return sums_on_nodes(template, snapshot.offsets, more)


def assumed_requests(snapshot: Snapshot, template: int) -> Values:
    """Return int64[2]: milli-CPU and bytes of a template with assumed requests."""
    requests = [value_of(snapshot.templates, f"request/{name}", template) for name in ASSUMED]
    return _assumed_requests(value_of(snapshot.templates, "spec", template), np.array(requests, np.int64))


def _assumed_requests(spec: str, requests: Values) -> Values:
    if not _lacks_requests(spec):
        return requests
    pod = decoded_spec(spec)
    _assume(pod)
    found = pod_requests(pod)
    return np.array([scaled(name, found[name]) for name in ASSUMED], np.int64)


def _lacks_requests(spec: str) -> bool:
    """Tell whether a container has no request of CPU or of memory; a whole pod takes longer to decode."""
    pod = _requests.decode(spec)
    containers = (*(pod.containers or ()), *(pod.init_containers or ()))
    asked = [one.resources.requests or {} if one.resources else {} for one in containers]
    return any(name not in requests for requests in asked for name in ASSUMED)


def _assume(pod: Pod) -> None:
    """Add assumed requests to containers without any."""
    for container in (*pod.spec.containers, *pod.init_containers):
        missing = {name: amount for name, amount in ASSUMED.items() if name not in container.requests}
        if missing:
            container.resources = ResourceRequirements({**container.requests, **missing})


class _Resources(msgspec.Struct, gc=False):
    requests: dict[str, msgspec.Raw] | None = None


class _Container(msgspec.Struct, gc=False):
    resources: _Resources | None = None


class _Requests(msgspec.Struct, gc=False, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


_requests = msgspec.json.Decoder(_Requests)


def _preferences(pod: Pod) -> list[tuple[int, PodAffinityTerm]]:
    """Return the preferred terms between pods with their weights, negative for anti-affinity."""
    affinity = pod.spec.affinity
    if affinity is None:
        return []
    return [
        (sign * one.weight, one.pod_affinity_term)
        for sign, side in ((1, affinity.pod_affinity), (-1, affinity.pod_anti_affinity))
        for one in _weighted(side)
    ]


def _weighted(side: PodAffinity | None) -> Iterator[WeightedPodAffinityTerm]:
    yield from (side.preferred_during_scheduling_ignored_during_execution if side is not None else None) or ()


def _normalized(values: Values, nodes: Nodes) -> Values:
    """Return the values in proportion to the greatest one among `nodes`, which gets 100."""
    most = int(values.max(initial=0, where=nodes))
    return MOST * values // most if most else values
