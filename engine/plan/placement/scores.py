"""Score nodes for one pod as the default profile of the scheduler does, v1.36.

Nodes that pass the filters get the weighted sum of TaintToleration (3), NodeAffinity (2), PodTopologySpread
(2), InterPodAffinity (2), NodeResourcesFit by least allocated (1), NodeResourcesBalancedAllocation (1) and
ImageLocality (1). The scheduler draws among equal nodes. In clusters of 100 nodes or more it scores only some
of them; here all are scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.admission.selectors import selects, selects_labels, tolerates
from engine.api.node import Taint
from engine.api.pod import Pod, ResourceRequirements
from engine.api.quantity import Quantity
from engine.api.resources import pod_requests, scaled
from engine.api.scheduling import (
    NodeSelector,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from engine.plan.placement.constraints import Constraints
from engine.plan.placement.room import Room
from engine.plan.placement.topology import Undecidable, spread_selector
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.objects import decoded_spec

MOST: Final = 100
HOSTNAME: Final = "kubernetes.io/hostname"
ASSUMED: Final = {"cpu": Quantity.parse("100m"), "memory": Quantity.parse("200Mi")}
"""Requests that the scheduler assumes for a container without any when it scores by least allocated."""
HARD_AFFINITY_WEIGHT: Final = 1
DEFAULT_SPREAD: Final = (("topology.kubernetes.io/zone", 3), (HOSTNAME, 5))
"""Keys and skews by which replicas spread if they have no constraint of their own."""
SPREAD_OWNERS: Final = ("ReplicaSet/", "StatefulSet/", "ReplicationController/")
SMALLEST_IMAGES: Final = 23 * 2**20
LARGEST_IMAGE: Final = 1000 * 2**20

Values = NDArray[np.int64]


class NodeScores:
    """Score nodes while pods move: `take` follows what `Room` does not count, assumed requests."""

    def __init__(self, snapshot: Snapshot, room: Room, constraints: Constraints) -> None:
        self._snapshot, self._room, self._constraints = snapshot, room, constraints
        self._template: NDArray[np.int32] = snapshot.pods["template"].to_numpy()
        self._owner = snapshot.pods["owner"].combine_chunks()
        self._terms: dict[int, list[tuple[int, PodAffinityTerm]]] = {}
        self._sizes: dict[str, Values] = {}
        allocatable = np.stack([snapshot.allocatable(name) for name in ASSUMED])
        self._allocatable: Values = np.maximum(allocatable, 0)
        placed = slice(0, snapshot.placed)
        amounts = self._assumed[:, self._template[placed]]
        self._used: Values = np.stack(
            [
                np.bincount(snapshot.column("node"), row.astype(np.float64), snapshot.node_count)
                for row in amounts
            ]
        ).astype(np.int64)

    def take(self, row: int, node: int, sign: int = 1) -> None:
        """Count a pod on a node, or no longer with `sign` -1."""
        self._used[:, node] += sign * self._assumed[:, self._template[row]]

    def best(self, row: int, request: Values, nodes: Values) -> Values:
        """Return the nodes with the highest score among `nodes`."""
        total = self.of(row, request, nodes)
        found: Values = nodes[total == total.max()]
        return found

    def of(self, row: int, request: Values, nodes: Values) -> Values:
        """Return int64[len(nodes)]: the score of each of these nodes for a pod."""
        pod = self._constraints.pod(row)
        total = 3 * _reversed(self._soft_taints(pod, nodes))
        total += 2 * self._preferred_nodes(pod, nodes)
        total += 2 * self._spread(row, pod, nodes)
        total += 2 * self._near(row, pod, nodes)
        total += self._least_allocated(row, nodes)
        total += self._balanced(request, nodes)
        total += self._images(pod, nodes)
        return total

    @cached_property
    def _assumed(self) -> Values:
        """Return int64[2, templates]: milli-CPU and bytes of each template with assumed requests."""
        known = [self._snapshot.templates[f"request/{name}"].to_numpy() for name in ASSUMED]
        amounts: Values = np.stack(known).astype(np.int64)
        specs = self._snapshot.templates["spec"]
        for number in np.unique(self._template).tolist():
            pod = decoded_spec(specs[number].as_py())
            if _assume(pod):
                found = pod_requests(pod)
                amounts[:, number] = [scaled(name, found[name]) for name in ASSUMED]
        return amounts

    def _least_allocated(self, row: int, nodes: Values) -> Values:
        total = self._allocatable[:, nodes]
        left = total - self._used[:, nodes] - self._assumed[:, [self._template[row]]]
        each = np.maximum(left, 0) * MOST // np.maximum(total, 1)
        named = (total > 0).sum(axis=0)
        found: Values = each.sum(axis=0) // np.maximum(named, 1)
        return found

    def _balanced(self, request: Values, nodes: Values) -> Values:
        """Score how much a pod improves the balance between CPU and memory requested."""
        if not request[:2].any():
            return np.zeros(len(nodes), np.int64)
        total = self._room.total[:2, nodes]
        before = total - self._room.free[:2, nodes]
        change = _balance(before + request[:2, None], total) - _balance(before, total)
        return MOST // 2 + (MOST // 2 + change) // 2

    @cached_property
    def _soft(self) -> tuple[list[tuple[Taint, ...]], Values]:
        """Return the distinct sets of PreferNoSchedule taints, and the set of each node."""
        numbers: dict[tuple[tuple[str, str], ...], int] = {}
        distinct: list[tuple[Taint, ...]] = []
        codes = []
        for taints in self._constraints.all_taints:
            mine = tuple(taint for taint in taints if taint.effect == "PreferNoSchedule")
            key = tuple((taint.key, taint.value) for taint in mine)
            if key not in numbers:
                numbers[key] = len(distinct)
                distinct.append(mine)
            codes.append(numbers[key])
        return distinct, np.array(codes, np.int64)

    def _soft_taints(self, pod: Pod, nodes: Values) -> Values:
        distinct, codes = self._soft
        tolerations = pod.spec.tolerations or ()
        counts = [sum(not tolerates(tolerations, taint) for taint in taints) for taints in distinct]
        return np.array(counts, np.int64)[codes[nodes]]

    def _preferred_nodes(self, pod: Pod, nodes: Values) -> Values:
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
        terms = (
            affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else None
        )
        found = np.zeros(len(nodes), np.int64)
        labels, names = self._constraints.labels, self._snapshot.node_names
        for term in terms or ():
            selector = NodeSelector(node_selector_terms=[term.preference])
            for place, node in enumerate(nodes.tolist()):
                if selects(selector, labels[node], names[node]):
                    found[place] += term.weight
        return _normalized(found)

    def _spread(self, row: int, pod: Pod, nodes: Values) -> Values:
        """Score soft topology spread: the constraints of the pod, or the scheduler's default ones."""
        topology = self._constraints.topology
        given = pod.spec.topology_spread_constraints or ()
        soft = [one for one in given if one.when_unsatisfiable == "ScheduleAnyway"]
        if not given:
            alike = self._replicas(row)
            wanted = [(key, skew, alike) for key, skew in DEFAULT_SPREAD] if alike is not None else []
        else:
            own, labels = (topology.namespace_of(row),), topology.labels_of(row)
            wanted = [
                (one.topology_key, one.max_skew, topology.matching(spread_selector(one, labels), own))
                for one in soft
            ]
        if not wanted:
            return np.zeros(len(nodes), np.int64)
        keyed = np.ones(self._snapshot.node_count, bool)
        if given:
            for key, _, _ in wanted:
                keyed &= topology.domains_of(key)[0] >= 0
        scores = np.zeros(len(nodes))
        used = keyed[nodes]
        for index, (key, skew, pods) in enumerate(wanted):
            domain = topology.domains_of(key)[0][nodes]
            if key == HOSTNAME:
                size, counts = int(used.sum()), topology.on_nodes(pods)[nodes]
            else:
                size = len(np.unique(domain[used]))
                counted = self._counted(row, soft[index] if given else None, keyed)
                counts = np.append(topology.on_domains(key, pods, counted), 0)[domain]
            scores += np.where(domain >= 0, counts * np.log(size + 2) + skew - 1, 0.0)
        return _spread_out(np.floor(scores + 0.5).astype(np.int64), used)

    def _counted(
        self, row: int, constraint: TopologySpreadConstraint | None, keyed: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return the nodes whose pods a constraint counts; None stands for a default constraint."""
        tolerated, affine = self._constraints.by_template(row)
        counted = keyed.copy()
        if constraint is None or constraint.node_affinity_policy != "Ignore":
            counted &= affine
        if constraint is not None and constraint.node_taints_policy == "Honor":
            counted &= tolerated
        return counted

    def _replicas(self, row: int) -> NDArray[np.bool_] | None:
        """Return bool[pods]: the pods of the same controller; None for one whose pods have no selector of
        their own. (Services would select more; a snapshot does not hold them.)
        """
        owner: str = self._owner[row].as_py() or ""
        if not owner.startswith(SPREAD_OWNERS):
            return None
        topology = self._constraints.topology
        codes = self._owner.indices.to_numpy()
        found: NDArray[np.bool_] = codes == codes[row]
        return found & topology.in_namespaces((topology.namespace_of(row),))

    def _near(self, row: int, pod: Pod, nodes: Values) -> Values:
        """Score preferred affinity between pods, in both directions, and required affinity of others."""
        topology = self._constraints.topology
        own, labels = (topology.namespace_of(row),), topology.labels_of(row)
        sums = np.zeros(len(nodes), np.int64)
        for weight, term in _preferences(pod):
            try:
                pods = topology.selected(term, own)
            except Undecidable:
                continue
            sums += weight * self._in_domain(term.topology_key, pods, nodes)
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
                    pods = pods & topology.in_namespaces(own)
                sums += weight * self._in_domain(term.topology_key, pods, nodes)
        low, span = int(sums.min()), int(sums.max() - sums.min())
        return (MOST * ((sums - low) / span)).astype(np.int64) if span else np.zeros(len(nodes), np.int64)

    def _in_domain(self, key: str, pods: NDArray[np.bool_], nodes: Values) -> Values:
        topology = self._constraints.topology
        domain = topology.domains_of(key)[0][nodes]
        counts = np.append(topology.on_domains(key, pods), 0)
        found: Values = counts[domain]
        return found

    @cached_property
    def _attracting(self) -> list[int]:
        """Return templates with terms that score later pods: preferred ones, and required affinity."""
        specs = self._snapshot.templates["spec"]
        used = np.unique(self._template).tolist()
        return [row for row in used if "podA" in specs[row].as_py() and self._terms_of(row)]

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

    def _images(self, pod: Pod, nodes: Values) -> Values:
        if not self._snapshot.images.num_rows:
            return np.zeros(len(nodes), np.int64)
        containers = [*pod.spec.containers, *pod.init_containers]
        sums = sum(
            (self._image(one.image) for one in containers), np.zeros(self._snapshot.node_count, np.int64)
        )
        most = LARGEST_IMAGE * len(containers)
        clipped = np.clip(sums[nodes], SMALLEST_IMAGES, most)
        found: Values = MOST * (clipped - SMALLEST_IMAGES) // (most - SMALLEST_IMAGES)
        return found

    @cached_property
    def _image_names(self) -> tuple[list[str], NDArray[np.int32]]:
        """Return the distinct names of images, separated by spaces, and those of each row."""
        names = self._snapshot.images["names"].combine_chunks().dictionary_encode()
        if isinstance(names, pa.ChunkedArray):
            names = names.combine_chunks()
        return names.dictionary.to_pylist(), names.indices.to_numpy()

    def _image(self, name: str) -> Values:
        """Return int64[nodes]: the size of an image where it is, scaled by how many nodes have it."""
        if ":" not in name.rpartition("/")[2]:
            name += ":latest"
        found = self._sizes.get(name)
        if found is None:
            images, nodes = self._snapshot.images, self._snapshot.node_count
            texts, codes = self._image_names
            rows = np.flatnonzero(
                np.isin(codes, [at for at, text in enumerate(texts) if name in text.split()])
            )
            found = np.zeros(nodes, np.int64)
            at = images["node"].to_numpy()[rows]
            found[at] = images["size"].to_numpy()[rows]
            found = (found * (len(np.unique(at)) / max(nodes, 1))).astype(np.int64)
            self._sizes[name] = found
        return found


def _assume(pod: Pod) -> bool:
    """Add assumed requests to containers without any; tell whether a container lacked one."""
    lacking = False
    for container in (*pod.spec.containers, *pod.init_containers):
        missing = {name: amount for name, amount in ASSUMED.items() if name not in container.requests}
        if missing:
            lacking = True
            container.resources = ResourceRequirements({**container.requests, **missing})
    return lacking


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


def _balance(used: Values, total: Values) -> Values:
    """Return 100 for equal shares of CPU and memory, less the further apart they are."""
    shares = np.minimum(used / np.maximum(total, 1), 1.0)
    apart = np.where((total > 0).all(axis=0), np.abs(shares[0] - shares[1]) / 2, 0.0)
    found: Values = ((1 - apart) * MOST).astype(np.int64)
    return found


def _normalized(values: Values) -> Values:
    most = int(values.max(initial=0))
    return MOST * values // most if most else values


def _reversed(values: Values) -> Values:
    return MOST - _normalized(values)


def _spread_out(values: Values, used: NDArray[np.bool_]) -> Values:
    """Turn counts into scores: the fewest get 100. Nodes that lack a key get 0."""
    if not used.any():
        return np.zeros(len(values), np.int64)
    low, most = int(values[used].min()), int(values[used].max())
    scores = np.full(len(values), MOST) if not most else MOST * (most + low - values) // most
    return np.where(used, scores, 0)
