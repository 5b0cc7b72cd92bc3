"""Choose nodes by their scores and by how evenly the replicas of a pod spread: PodTopologySpread, v1.36.

The score by spread depends only on a node's domains and on how many replicas it holds. So nodes are sorted
into cells: those without replicas by the domains that they are in, each other one by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine._fast.placement.spread_scores import best_nodes, seen_cells
from engine.api.pod import Pod
from engine.api.scheduling import TopologySpreadConstraint
from engine.plan.placement.constraints import Constraints
from engine.plan.placement.topology import PodRows, spread_selector
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.lazy_table import coded
from engine.plan.snapshot.node_labels import Nodes, labels_of_nodes, numbered

MOST: Final = 100
WEIGHT: Final = 2
HOSTNAME: Final = "kubernetes.io/hostname"
DEFAULT_SPREAD: Final = (("topology.kubernetes.io/zone", 3), (HOSTNAME, 5))
"""Keys and skews by which replicas spread if they have no constraint of their own."""
SPREAD_OWNERS: Final = ("ReplicaSet/", "StatefulSet/", "ReplicationController/")

Values = NDArray[np.int64]


class _Wanted(NamedTuple):
    """Hold a soft constraint: a topology key, its skew, the pods that it spreads, and how it is written;
    None for a default one.
    """

    key: str
    skew: int
    pods: PodRows
    given: TopologySpreadConstraint | None = None


@dataclass
class _Cells:
    """Hold the cell of each node, int32[nodes], without regard to replicas; for each cell its domains by
    topology key, int32[cells], and whether its nodes have a host name; and whether a node, and a cell, has
    every key that the pod's own constraints name.
    """

    of_node: NDArray[np.int32]
    domains: dict[str, NDArray[np.int32]]
    named: NDArray[np.bool_]
    keyed: NDArray[np.bool_]
    keyed_nodes: Nodes


class SpreadScores:
    """Choose among nodes with scores while pods move."""

    def __init__(self, snapshot: Snapshot, constraints: Constraints) -> None:
        self._constraints, self._labels = constraints, labels_of_nodes(snapshot)
        self._owners, self._owner_code = coded(snapshot.pods, "owner")
        self._owned: dict[tuple[int, str], PodRows] = {}
        self._cells: dict[tuple[bool, tuple[str, ...]], _Cells] = {}
        self._together = np.zeros(snapshot.node_count, np.int32), np.zeros(1, np.int64)

    def best(self, total: Values, row: int, pod: Pod, nodes: Nodes) -> Values:
        """Return those of `nodes` whose `total`, int64[nodes], plus the score by spread is highest."""
        wanted = self._wanted(row, pod)
        if not wanted:
            return best_nodes(total, nodes.view(np.uint8), *self._together)
        cells = self._cells_of(wanted)
        places = [self._constraints.topology.places(one.pods) for one in wanted if one.key == HOSTNAME]
        hosts = _distinct(np.concatenate([np.zeros(0, np.int32), *places]))
        # Few nodes hold replicas: giving these a cell each and taking it away again spares a copy of all.
        before, count = cells.of_node[hosts], len(cells.named)
        cells.of_node[hosts] = np.arange(count, count + len(hosts))
        there = np.append(seen_cells(cells.of_node, nodes.view(np.uint8), count), nodes[hosts])
        kind: NDArray[np.int64] = np.concatenate([np.arange(count), before])
        there &= cells.keyed[kind]
        held = np.zeros(len(kind))
        for at in places:
            weight = np.log(np.count_nonzero(nodes & cells.keyed_nodes) + 2)
            replicas = np.bincount(np.searchsorted(hosts, at), minlength=len(hosts))
            held[count:] += np.where(cells.named[before], replicas * weight, 0.0)
        score = self._scores(row, wanted, cells, kind, there, held)
        found = best_nodes(total, nodes.view(np.uint8), cells.of_node, score)
        cells.of_node[hosts] = before
        return found

    def _scores(
        self,
        row: int,
        wanted: list[_Wanted],
        cells: _Cells,
        kind: NDArray[np.int64],
        there: NDArray[np.bool_],
        held: NDArray[np.float64],
    ) -> Values:
        """Return int64[len(kind)]: the weighted score of each cell.

        `kind` is the cell without regard to replicas, `there` tells which have nodes, and `held` is what the
        replicas on the nodes themselves count.
        """
        topology = self._constraints.topology
        skews = sum(one.skew - 1 for one in wanted if one.key == HOSTNAME)
        # Half a point, because the scheduler rounds the sum, and the conversion cuts it off.
        counts = held + np.where(cells.named[kind], 0.5 + skews, 0.5)
        for one in wanted:
            if one.key == HOSTNAME:
                continue
            domain = cells.domains[one.key][kind]
            weight = np.log(len(_distinct(domain[there])) + 2)
            on_domains = topology.on_domains(one.key, one.pods, self._counted(row, one.given, cells))
            counts += np.append(on_domains * weight + one.skew - 1, 0.0)[domain]
        whole = counts.astype(np.int64)
        if not there.any():
            return np.zeros(len(kind), np.int64)
        low, most = int(whole[there].min()), int(whole[there].max())
        scores = MOST * (most + low - whole) // most if most else np.full(len(kind), MOST)
        weighted: Values = WEIGHT * np.where(cells.keyed[kind], scores, 0)
        return weighted

    def _wanted(self, row: int, pod: Pod) -> list[_Wanted]:
        """Return the soft constraints of a pod, or the default ones."""
        topology = self._constraints.topology
        given = pod.spec.topology_spread_constraints
        if not given:
            alike = self._replicas(row)
            return [_Wanted(key, skew, alike) for key, skew in DEFAULT_SPREAD] if alike is not None else []
        own, labels = (topology.namespace_of(row),), topology.labels_of(row)
        return [
            _Wanted(one.topology_key, one.max_skew, topology.matching(spread_selector(one, labels), own), one)
            for one in given
            if one.when_unsatisfiable == "ScheduleAnyway"
        ]

    def _cells_of(self, wanted: list[_Wanted]) -> _Cells:
        """Return the cells by the topology keys of some constraints."""
        given = wanted[0].given is not None
        names = given, tuple(dict.fromkeys(one.key for one in wanted))
        found = self._cells.get(names)
        if found is None:
            keys = tuple(key for key in names[1] if key != HOSTNAME)
            named = self._labels.domains_of(HOSTNAME)[0] >= 0
            first, of_node = numbered(2 * self._labels.grouped(keys)[1].astype(np.int64) + named)
            domains = {key: self._labels.domains_of(key)[0][first] for key in keys}
            keyed = np.ones(len(first), bool)
            if given:
                keyed = np.logical_and.reduce([domain >= 0 for domain in domains.values()], initial=True)
                keyed = keyed & named[first] if HOSTNAME in names[1] else np.broadcast_to(keyed, len(first))
            found = self._cells[names] = _Cells(of_node.copy(), domains, named[first], keyed, keyed[of_node])
        return found

    def _counted(self, row: int, constraint: TopologySpreadConstraint | None, cells: _Cells) -> Nodes:
        """Return the nodes whose pods a constraint counts; None stands for a default constraint."""
        tolerated, affine = self._constraints.by_template(row)
        counted = cells.keyed_nodes.copy()
        if constraint is None or constraint.node_affinity_policy != "Ignore":
            counted &= affine
        if constraint is not None and constraint.node_taints_policy == "Honor":
            counted &= tolerated
        return counted

    def _replicas(self, row: int) -> PodRows | None:
        """Return the pods of the same controller; None for one whose pods have no selector of
        their own. (Services would select more; a snapshot does not hold them.)
        """
        codes = self._owner_code
        if not self._owners[codes[row]].startswith(SPREAD_OWNERS):
            return None
        topology = self._constraints.topology
        namespace = topology.namespace_of(row)
        key = int(codes[row]), namespace
        if key not in self._owned:
            rows = np.flatnonzero(codes == codes[row])
            self._owned[key] = topology.in_namespaces(rows, (namespace,))
        return self._owned[key]


def _distinct(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the distinct values in ascending order. (`np.unique` hashes them, which takes longer.)"""
    ordered = np.sort(values)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    found: NDArray[np.int32] = ordered[first]
    return found
