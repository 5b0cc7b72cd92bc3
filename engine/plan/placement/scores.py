"""Score nodes for one pod as the default profile of the v1.36 scheduler does.

A node that passes the filters gets the weighted sum of TaintToleration (3), NodeAffinity (2),
PodTopologySpread (2, in `spread`), InterPodAffinity (2), NodeResourcesFit with LeastAllocated (1),
NodeResourcesBalancedAllocation (1) and ImageLocality (1). The scheduler draws one of the nodes with the
highest score; here all of them are returned. In clusters of 100 nodes or more it scores a sample of the
nodes; here all are scored.
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
from engine.plan.placement.filters import SchedulerFilters
from engine.plan.placement.image_sizes import image_sizes
from engine.plan.placement.node_capacity import NodeCapacity
from engine.plan.placement.spread import MAX_NODE_SCORE, SpreadScores
from engine.plan.placement.topology import PodRows, Undecidable
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.lazy_table import value_of
from engine.plan.snapshot.node_labels import Nodes
from engine.plan.snapshot.objects import decoded_spec
from engine.plan.snapshot.results import once_per_snapshot

MAX_CACHED_TEMPLATES: Final = 4
"""Templates whose scores are cached: successive pods often have the same template."""
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
NON_ZERO_REQUESTS: Final = {"cpu": Quantity.parse("100m"), "memory": Quantity.parse("200Mi")}
"""Requests that the scheduler assumes, when it scores by LeastAllocated, for a container that has none
(`DefaultMilliCPURequest`, `DefaultMemoryRequest`)."""
HARD_POD_AFFINITY_WEIGHT: Final = 1
"""Weight of another pod's required affinity to the scored pod (`hardPodAffinityWeight`)."""
MIN_IMAGE_SIZE: Final = 23 * 2**20
MAX_IMAGE_SIZE: Final = 1000 * 2**20
"""Bytes of images at which ImageLocality gives 0, and bytes per container at which it gives 100."""

Values = NDArray[np.int64]
Scores = NDArray[np.int16]
"""Scores of nodes: a few hundred in sum. Narrow ones are compared several at once."""


@dataclass
class _TemplateScores:
    """Hold what the pods of a template share, for each node.

    `images` is ImageLocality, and `fixed` that plus the scores by amounts. `intolerable_taints` and
    `preferred` are raw values of TaintToleration and NodeAffinity, which are normalized among the nodes that
    pass the filters; None if all are 0.
    """

    request: Values
    images: Values
    fixed: Scores
    intolerable_taints: Values | None
    preferred: Values | None


class NodeScores:
    """Score nodes while pods move. `update` tracks non-zero requests, which `NodeCapacity` does not."""

    def __init__(self, snapshot: Snapshot, capacity: NodeCapacity, filters: SchedulerFilters) -> None:
        self._snapshot, self._capacity, self._filters = snapshot, capacity, filters
        self._template: NDArray[np.int32] = snapshot.pods["template"].to_numpy()
        self._terms: dict[int, list[tuple[int, PodAffinityTerm]]] = {}
        self._sizes: dict[str, Values] = {}
        self._spread = SpreadScores(snapshot, filters)
        self._cached: dict[int, _TemplateScores] = {}
        allocatable = np.stack([snapshot.allocatable(name) for name in NON_ZERO_REQUESTS])
        self._allocatable: Values = np.maximum(allocatable, 0)
        self._non_zero: dict[int, Values] = {}
        requested = self._capacity.total[:2] - self._capacity.free[:2]
        self._non_zero_requested: Values = requested + non_zero_excess(snapshot)

    def update(self, row: int, node: int, sign: int = 1) -> None:
        """Add a pod to a node, or remove it with `sign` -1. Update the capacity before."""
        self._non_zero_requested[:, node] += sign * self._non_zero_of(int(self._template[row]))
        changed = np.array([node])
        for template, cached in self._cached.items():
            cached.fixed[node] = cached.images[node] + self._by_amounts(template, cached.request, changed)[0]

    def best(self, row: int, request: Values, nodes: Nodes) -> Values:
        """Return the nodes with the highest score for a pod among `nodes`, bool[nodes], in ascending order.

        `request` is int64[resources].
        """
        pod, cached = self._filters.pod(row), self._scores_of_template(row, request)
        total = cached.fixed
        # A score that is equal for all nodes is left out: without intolerable taints each node would get 100.
        if cached.intolerable_taints is not None:
            total = total + 3 * (MAX_NODE_SCORE - _normalized(cached.intolerable_taints, nodes))
        if cached.preferred is not None:
            total = total + 2 * _normalized(cached.preferred, nodes)
        affinity = self._inter_pod_affinity(row, pod, nodes)
        if affinity is not None:
            total = total + 2 * affinity
        return self._spread.best(total, row, pod, nodes)

    def _scores_of_template(self, row: int, request: Values) -> _TemplateScores:
        """Return what the pods of a template have in common, cached; `update` keeps it current."""
        template = int(self._template[row])
        found = self._cached.get(template)
        if found is None:
            pod = self._filters.pod(row)
            images = self._image_locality(pod)
            fixed = (images + self._by_amounts(template, request)).astype(np.int16)
            taints, preferred = self._intolerable_taints(pod), self._preferred_nodes(pod)
            found = _TemplateScores(
                request,
                images,
                fixed,
                taints if taints.any() else None,
                preferred if preferred.any() else None,
            )
            while len(self._cached) >= MAX_CACHED_TEMPLATES:
                del self._cached[next(iter(self._cached))]
            self._cached[template] = found
        return found

    def _by_amounts(self, template: int, request: Values, nodes: Values | None = None) -> Values:
        """Return int64: LeastAllocated plus NodeResourcesBalancedAllocation of some nodes, or of all.

        LeastAllocated takes non-zero requests, BalancedAllocation the requests themselves.
        """
        capacity, non_zero = self._capacity, self._non_zero_of(template)
        return scores_by_amounts(
            capacity.total,
            capacity.free,
            self._allocatable,
            self._non_zero_requested,
            request,
            non_zero,
            nodes,
        )

    def _non_zero_of(self, template: int) -> Values:
        """Return int64[2]: the non-zero requests of a template in milli-CPU and bytes."""
        found = self._non_zero.get(template)
        if found is None:
            found = self._non_zero[template] = non_zero_requests(self._snapshot, template)
        return found

    def _intolerable_taints(self, pod: Pod) -> Values:
        """Return int64[nodes]: how many PreferNoSchedule taints of each node a pod does not tolerate."""
        distinct, codes = self._filters.nodes.taint_sets
        tolerations = pod.spec.tolerations or ()
        counts = [
            sum(taint.effect == PREFER_NO_SCHEDULE and not tolerates(tolerations, taint) for taint in taints)
            for taints in distinct
        ]
        found: Values = np.array(counts, np.int64)[codes]
        return found

    def _preferred_nodes(self, pod: Pod) -> Values:
        """Return int64[nodes]: the sum of the weights of the preferred node affinity terms that match."""
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
        terms = (
            affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else None
        )
        found = np.zeros(self._snapshot.node_count, np.int64)
        for term in terms or ():
            selector = NodeSelector(node_selector_terms=[term.preference])
            found += term.weight * self._filters.nodes.selected(selector)
        return found

    def _inter_pod_affinity(self, row: int, pod: Pod, nodes: Nodes) -> Scores | None:
        """Return int16[nodes]: InterPodAffinity, normalized to 0 to 100 among `nodes`; None if all are equal.

        It counts the preferred terms of the pod, the preferred terms of other pods that match it, and the
        required affinity of other pods that match it.
        """
        preferences = _preferences(pod)
        if not preferences and not self._attracting:
            return None
        topology = self._filters.topology
        own, labels = (topology.namespace_of(row),), topology.labels_of(row)
        sums = np.zeros(self._snapshot.node_count, np.int64)
        for weight, term in preferences:
            try:
                pods = topology.pods_selected(term, own)
            except Undecidable:
                # A preference excludes no node: one that cannot be decided is left out.
                continue
            sums += weight * self._count_in_domain(term.topology_key, pods)
        for template in self._attracting:
            for weight, term in self._terms_of(template):
                if not selects_labels(term.label_selector, labels):
                    continue
                pods = topology.pods_of_template(template)
                try:
                    namespaces = topology.namespaces_of(term, ())
                except Undecidable:
                    continue
                # An empty tuple stands for the namespace of each pod that has the term.
                if namespaces is not None and own[0] not in namespaces:
                    if namespaces:
                        continue
                    pods = topology.in_namespaces(pods, own)
                sums += weight * self._count_in_domain(term.topology_key, pods)
        among = sums[nodes]
        low, span = int(among.min()), int(among.max() - among.min())
        return (MAX_NODE_SCORE * ((sums - low) / span)).astype(np.int16) if span else None

    def _count_in_domain(self, key: str, pods: PodRows) -> Values:
        """Return int64[nodes]: how many of some pods are in the domain of each node; 0 without the label."""
        topology = self._filters.topology
        # The appended 0 is what domain -1 selects.
        counts = np.append(topology.count_by_domain(key, pods), 0)
        found: Values = counts[topology.domains_of(key)[0]]
        return found

    @cached_property
    def _attracting(self) -> list[int]:
        """Return the templates whose pods have affinity terms that score other pods."""
        specs = self._snapshot.templates["spec"].to_pylist()
        # "podA" is in both podAffinity and podAntiAffinity: most specs are not decoded.
        return [row for row, spec in enumerate(specs) if "podA" in spec and self._terms_of(row)]

    def _terms_of(self, template: int) -> list[tuple[int, PodAffinityTerm]]:
        """Return the weights and terms by which pods of a template score other pods."""
        found = self._terms.get(template)
        if found is None:
            pod = decoded_spec(self._snapshot.templates["spec"][template].as_py())
            affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
            hard = affinity.required_during_scheduling_ignored_during_execution if affinity else None
            found = [(HARD_POD_AFFINITY_WEIGHT, term) for term in hard or ()]
            found += _preferences(pod)
            self._terms[template] = found
        return found

    def _image_locality(self, pod: Pod) -> Values:
        """Return int64[nodes]: ImageLocality, 0 to 100 by the bytes of the pod's images that a node has."""
        if not self._snapshot.images.num_rows:
            return np.zeros(self._snapshot.node_count, np.int64)
        containers = [*pod.spec.containers, *pod.init_containers]
        sums = sum(
            (self._scaled_image_size(one.image) for one in containers),
            np.zeros(self._snapshot.node_count, np.int64),
        )
        most = MAX_IMAGE_SIZE * len(containers)
        clipped = np.clip(sums, MIN_IMAGE_SIZE, most)
        found: Values = MAX_NODE_SCORE * (clipped - MIN_IMAGE_SIZE) // (most - MIN_IMAGE_SIZE)
        return found

    def _scaled_image_size(self, name: str) -> Values:
        """Return int64[nodes]: the bytes of an image on each node times the share of nodes that have it."""
        if ":" not in name.rpartition("/")[2]:
            name += ":latest"
        found = self._sizes.get(name)
        if found is None:
            sizes = image_sizes(self._snapshot).sizes_on_nodes(name)
            share = np.count_nonzero(sizes >= 0) / max(len(sizes), 1)
            # As in the scheduler, an image that few nodes have counts little: pods would otherwise gather on
            # those nodes.
            found = self._sizes[name] = (np.maximum(sizes, 0) * share).astype(np.int64)
        return found


@once_per_snapshot
def non_zero_excess(snapshot: Snapshot) -> Values:
    """Return int64[2, nodes]: by how much the non-zero requests on each node exceed the requests, in
    milli-CPU and bytes.
    """
    template = snapshot.column("template")
    excess = np.zeros((snapshot.templates.num_rows, 2), np.int64)
    requests = np.stack(
        [snapshot.templates[f"request/{name}"].to_numpy() for name in NON_ZERO_REQUESTS], axis=1
    )
    specs = snapshot.templates["spec"].to_pylist()
    for number, spec in enumerate(specs):
        if _lacks_requests(spec):
            excess[number] = _with_assumed(spec) - requests[number]
    return sums_on_nodes(template, snapshot.offsets, excess)


def non_zero_requests(snapshot: Snapshot, template: int) -> Values:
    """Return int64[2]: the non-zero requests of a template in milli-CPU and bytes."""
    requests = [value_of(snapshot.templates, f"request/{name}", template) for name in NON_ZERO_REQUESTS]
    return _non_zero(value_of(snapshot.templates, "spec", template), np.array(requests, np.int64))


def _non_zero(spec: str, requests: Values) -> Values:
    return _with_assumed(spec) if _lacks_requests(spec) else requests


def _with_assumed(spec: str) -> Values:
    """Return int64[2]: the requests of a template, with the assumed ones."""
    pod = decoded_spec(spec)
    _add_non_zero_requests(pod)
    found = pod_requests(pod)
    return np.array([scaled(name, found[name]) for name in NON_ZERO_REQUESTS], np.int64)


def _lacks_requests(spec: str) -> bool:
    """Return whether a container of a spec has no request for CPU or for memory.

    This decodes only the requests, because a whole pod takes longer.
    """
    pod = _requests.decode(spec)
    containers = (*(pod.containers or ()), *(pod.init_containers or ()))
    of_containers = [one.resources.requests or {} if one.resources else {} for one in containers]
    return any(name not in requests for requests in of_containers for name in NON_ZERO_REQUESTS)


def _add_non_zero_requests(pod: Pod) -> None:
    """Add the assumed requests to the containers that have none for CPU or for memory."""
    for container in (*pod.spec.containers, *pod.init_containers):
        missing = {
            name: amount for name, amount in NON_ZERO_REQUESTS.items() if name not in container.requests
        }
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
    """Return the weights and preferred affinity terms of a pod; the weight of anti-affinity is negative."""
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


def _normalized(values: Values, nodes: Nodes) -> Scores:
    """Return int16[nodes]: `values` scaled so that the greatest one among `nodes`, bool[nodes], is 100; other
    nodes get 100 at most.
    """
    most = int(values.max(initial=0, where=nodes))
    scaled = MAX_NODE_SCORE * values // most if most else values
    return scaled.clip(-MAX_NODE_SCORE, MAX_NODE_SCORE).astype(np.int16)
