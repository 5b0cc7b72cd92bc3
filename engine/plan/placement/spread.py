"""Add the score PodTopologySpread of the v1.36 scheduler to the other scores, and choose the best nodes.

The score depends only on the domains of a node and on how many matching pods it has. So nodes are grouped
into cells with equal scores: nodes without matching pods by their domains, and each other node in a cell of
its own. A cluster of 10,000 nodes in three zones has few cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine._fast.placement.spread_scores import best_nodes, seen_cells
from engine.api.pod import Pod
from engine.api.scheduling import TopologySpreadConstraint
from engine.plan.placement.filters import SchedulerFilters
from engine.plan.placement.topology import PodRows, spread_selector
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.distinct import distinct_numbers, numbered
from engine.plan.snapshot.lazy_table import coded
from engine.plan.snapshot.node_labels import Nodes, labels_of_nodes

MAX_NODE_SCORE: Final = 100
WEIGHT: Final = 2
HOSTNAME: Final = "kubernetes.io/hostname"
SYSTEM_DEFAULT_CONSTRAINTS: Final = (("topology.kubernetes.io/zone", 3), (HOSTNAME, 5))
"""Topology keys and maximum skews for pods without constraints of their own (`systemDefaultConstraints`)."""
SPREAD_OWNERS: Final = ("ReplicaSet/", "StatefulSet/", "ReplicationController/")

Values = NDArray[np.int64]


class _SoftConstraint(NamedTuple):
    """Hold a constraint with ScheduleAnyway: its topology key, its maximum skew, the pods that its selector
    matches, and its specification; None for a system default.
    """

    key: str
    max_skew: int
    pods: PodRows
    spec: TopologySpreadConstraint | None = None


@dataclass
class _Cells:
    """Hold groups of nodes that have equal domains, without regard to pods.

    of_node      int32[nodes]   the cell of each node
    domains      int32[cells] by topology key: the domain of each cell, -1 without the label
    named        bool[cells]    whether the nodes have a host name label
    keyed        bool[cells]    whether the nodes have all topology keys of the pod's own constraints
    keyed_nodes  bool[nodes]    the same for each node
    """

    of_node: NDArray[np.int32]
    domains: dict[str, NDArray[np.int32]]
    named: NDArray[np.bool_]
    keyed: NDArray[np.bool_]
    keyed_nodes: Nodes


class SpreadScores:
    """Score nodes by PodTopologySpread while pods move."""

    def __init__(self, snapshot: Snapshot, filters: SchedulerFilters) -> None:
        self._filters, self._labels = filters, labels_of_nodes(snapshot)
        self._owners, self._owner_code = coded(snapshot.pods, "owner")
        self._pods_of_owner: dict[tuple[int, str], PodRows] = {}
        self._cells: dict[tuple[bool, tuple[str, ...]], _Cells] = {}

    def best(self, total: NDArray[np.int16], row: int, pod: Pod, nodes: Nodes) -> Values:
        """Return the nodes, among `nodes`, bool[nodes], whose `total`, int16[nodes], plus PodTopologySpread
        is highest, in ascending order.
        """
        constraints = self._soft_constraints(row, pod)
        if not constraints:
            return best_nodes(total, nodes.view(np.uint8), None, None)
        cells = self._cells_of(constraints)
        nodes_of_pods = [
            self._filters.topology.nodes_of(one.pods) for one in constraints if one.key == HOSTNAME
        ]
        hosts = distinct_numbers(np.concatenate([np.zeros(0, np.int32), *nodes_of_pods]))
        # Few nodes have matching pods: to give each of these a cell of its own, and to take it back at the
        # end, spares a copy of the column.
        before, count = cells.of_node[hosts], len(cells.named)
        cells.of_node[hosts] = np.arange(count, count + len(hosts))
        present = np.append(seen_cells(cells.of_node, nodes.view(np.uint8), count), nodes[hosts])
        base_cell: NDArray[np.int64] = np.concatenate([np.arange(count), before])
        present &= cells.keyed[base_cell]
        on_host = np.zeros(len(base_cell))
        for at in nodes_of_pods:
            weight = _topology_weight(int(np.count_nonzero(nodes & cells.keyed_nodes)))
            matching = np.bincount(np.searchsorted(hosts, at), minlength=len(hosts))
            on_host[count:] += np.where(cells.named[before], matching * weight, 0.0)
        score = self._cell_scores(row, constraints, cells, base_cell, present, on_host)
        found = best_nodes(total, nodes.view(np.uint8), cells.of_node, score)
        cells.of_node[hosts] = before
        return found

    def _cell_scores(
        self,
        row: int,
        constraints: list[_SoftConstraint],
        cells: _Cells,
        base_cell: NDArray[np.int64],
        present: NDArray[np.bool_],
        on_host: NDArray[np.float64],
    ) -> NDArray[np.int16]:
        """Return int16[n]: the weighted score of each of n cells, those of `cells` and those of single nodes;
        0 for a cell that is not present.

        `base_cell`, int64[n], is the cell of `cells` with the same domains. `present`, bool[n], are the cells
        with nodes to choose from. `on_host`, float64[n], is the weighted number of matching pods by host
        name.
        """
        topology = self._filters.topology
        skews = sum(one.max_skew - 1 for one in constraints if one.key == HOSTNAME)
        # The scheduler rounds the sum: half a point more, and the conversion to integers rounds alike.
        counts = on_host + np.where(cells.named[base_cell], 0.5 + skews, 0.5)
        for one in constraints:
            if one.key == HOSTNAME:
                continue
            domain = cells.domains[one.key][base_cell]
            weight = _topology_weight(len(distinct_numbers(domain[present])))
            in_domain = topology.count_by_domain(one.key, one.pods, *self._counted(row, one.spec, cells))
            # The appended 0 is what domain -1 selects.
            counts += np.append(in_domain * weight + one.max_skew - 1, 0.0)[domain]
        rounded = counts.astype(np.int64)
        if not present.any():
            return np.zeros(len(base_cell), np.int16)
        low, most = int(rounded[present].min()), int(rounded[present].max())
        # Few matching pods are good, so the normalization of the plugin is turned around.
        scores = (
            MAX_NODE_SCORE * (most + low - rounded) // most
            if most
            else np.full(len(base_cell), MAX_NODE_SCORE)
        )
        weighted: NDArray[np.int16] = (WEIGHT * np.where(present, scores, 0)).astype(np.int16)
        return weighted

    def _soft_constraints(self, row: int, pod: Pod) -> list[_SoftConstraint]:
        """Return the pod's own constraints with ScheduleAnyway; the system defaults if it has no
        constraint.
        """
        topology = self._filters.topology
        specs = pod.spec.topology_spread_constraints
        if not specs:
            replicas = self._replicas(row)
            if replicas is None:
                return []
            return [_SoftConstraint(key, skew, replicas) for key, skew in SYSTEM_DEFAULT_CONSTRAINTS]
        own, labels = (topology.namespace_of(row),), topology.labels_of(row)
        return [
            _SoftConstraint(
                spec.topology_key,
                spec.max_skew,
                topology.pods_matching(spread_selector(spec, labels), own),
                spec,
            )
            for spec in specs
            if spec.when_unsatisfiable == "ScheduleAnyway"
        ]

    def _cells_of(self, constraints: list[_SoftConstraint]) -> _Cells:
        """Return the cells by the topology keys of some constraints, cached."""
        own = constraints[0].spec is not None
        names = own, tuple(dict.fromkeys(one.key for one in constraints))
        found = self._cells.get(names)
        if found is None:
            keys = tuple(key for key in names[1] if key != HOSTNAME)
            named = self._labels.with_label(HOSTNAME)
            first, of_node = numbered(2 * self._labels.grouped(keys)[1].astype(np.int64) + named)
            domains = {key: self._labels.domains_of(key)[0][first] for key in keys}
            keyed = np.ones(len(first), bool)
            # System defaults also score nodes without their keys (`requireAllTopologies` is false for them).
            if own:
                keyed = np.logical_and.reduce([domain >= 0 for domain in domains.values()], initial=True)
                keyed = keyed & named[first] if HOSTNAME in names[1] else np.broadcast_to(keyed, len(first))
            found = self._cells[names] = _Cells(of_node.copy(), domains, named[first], keyed, keyed[of_node])
        return found

    def _counted(
        self, row: int, constraint: TopologySpreadConstraint | None, cells: _Cells
    ) -> Iterator[Nodes]:
        """Yield bool[nodes]: a constraint counts the pods of nodes that are in each of these, by its node
        inclusion policies; None stands for a system default.
        """
        tolerated, affine = self._filters.selected_nodes(row)
        yield cells.keyed_nodes
        if constraint is None or constraint.node_affinity_policy != "Ignore":
            yield affine
        if constraint is not None and constraint.node_taints_policy == "Honor":
            yield tolerated

    def _replicas(self, row: int) -> PodRows | None:
        """Return the pods of the same controller; None if the pod has none of the kinds that the plugin
        reads.

        The plugin adds the selectors of Services, which a snapshot does not hold.
        """
        codes = self._owner_code
        if not self._owners[codes[row]].startswith(SPREAD_OWNERS):
            return None
        topology = self._filters.topology
        namespace = topology.namespace_of(row)
        key = int(codes[row]), namespace
        if key not in self._pods_of_owner:
            rows = np.flatnonzero(codes == codes[row])
            self._pods_of_owner[key] = topology.in_namespaces(rows, (namespace,))
        return self._pods_of_owner[key]


def _topology_weight(domains: int) -> float:
    """Return the weight of one matching pod: more domains hold fewer pods each
    (`topologyNormalizingWeight`).
    """
    return float(np.log(domains + 2))
