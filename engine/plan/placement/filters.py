"""Apply the filter plugins of the v1.36 scheduler other than NodeResourcesFit to one pod at a time.

`SchedulerFilters` computes the nodes that pass each filter: readiness and taints (TaintToleration,
NodeUnschedulable), NodeAffinity, VolumeBinding and VolumeZone, NodeVolumeLimits (`volume_limits`),
VolumeRestrictions (`disks`), NodePorts, InterPodAffinity and PodTopologySpread (`topology`), and
DynamicResources (`device_claims`). `node_capacity` compares amounts. A filter raises `Undecidable` if it
needs data that the snapshot does not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property, partial
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.admission.predicates import UsedPorts, host_ports, port_text
from engine.admission.selectors import matches_node, tolerates
from engine.api.errors import InvalidInput
from engine.api.node import Taint
from engine.api.pod import Pod
from engine.api.scheduling import NodeSelector
from engine.plan.claims.known import dynamic_resources
from engine.plan.placement.causes import (
    FilterResult,
    counted_causes,
    unmatched_labels,
    unreached,
    untolerated_taints,
)
from engine.plan.placement.device_claims import DeviceClaims
from engine.plan.placement.disks import ExclusiveDisks
from engine.plan.placement.topology import PodTopology, Undecidable
from engine.plan.placement.volume_limits import AttachedVolume, AttachLimits
from engine.plan.snapshot.columns import EPHEMERAL_CLAIM, NO_NODE, Snapshot
from engine.plan.snapshot.inline_volumes import INLINE_VOLUME, attached_as
from engine.plan.snapshot.lazy_table import filled, read_ahead
from engine.plan.snapshot.node_labels import Nodes, labels_of_nodes
from engine.plan.snapshot.objects import decoded_spec

REPELLING_EFFECTS = ("NoSchedule", "NoExecute")
NOT_READY, A_TAINT, SELECTION = "not ready or unknown", "a taint", "node selector or affinity"
"""Reasons of filters that exclude nodes."""
CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")

_selector = msgspec.json.Decoder(NodeSelector | None)


def has_scheduling_constraints(snapshot: Snapshot) -> bool:
    """Return whether the snapshot holds the constraints of pods. Traces that were read from tables, and files
    in older formats, hold requests only.
    """
    return "claims" in snapshot.pods.column_names


def read_columns_ahead(snapshot: Snapshot) -> None:
    """Read in a thread what the scheduler needs of all pods and images."""
    if has_scheduling_constraints(snapshot):
        read_ahead(snapshot.pods, "owner", "labels", "namespace", "claims")
        read_ahead(snapshot.images, "names")


class _Volume(NamedTuple):
    """Hold the volume of a claim, the nodes that reach it (a NodeSelector as JSON; None if the volume is
    unknown), and its identity in CSI.
    """

    volume: str
    affinity: str | None
    csi: AttachedVolume


class SchedulerFilters:
    """Apply the filters to the pods of one snapshot, and follow the pods that move in it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.topology, self.nodes = PodTopology(snapshot), labels_of_nodes(snapshot)
        self._template: NDArray[np.int32] = snapshot.pods["template"].to_numpy()
        self._pods: dict[int, Pod] = {}
        self._selected: dict[int, tuple[Nodes, Nodes]] = {}
        self._unchanging: dict[int, Nodes] = {}
        self._reach: dict[str, tuple[Nodes, NodeSelector | None]] = {}
        self._ports: dict[int, UsedPorts] | None = None
        self._claim_names = filled(snapshot.pods, "claims")
        self._device_claim_names = filled(snapshot.pods, "device_claims")
        ready = snapshot.nodes["ready"].fill_null(True).to_numpy(zero_copy_only=False)
        self._ready: Nodes = ready & snapshot.nodes["known"].to_numpy(zero_copy_only=False)

    def remove_pod(self, row: int) -> None:
        """Remove a pod from its node, with all that it uses there."""
        node = self.topology.node_of(row)
        self.topology.remove_pod(row)
        pod = self.pod(row)
        if node != NO_NODE and host_ports(pod):
            self._used_ports[node].remove(pod)
        if row in self._claim_names:
            self._attach_limits.remove_pod(row, node)
            self._exclusive_disks.remove_pod(row, node)
        if row in self._device_claim_names and self._devices is not None:
            self._devices.remove_pod(row, node)

    def add_pod(self, row: int, node: int) -> None:
        """Put a pod on a node, -1 for none."""
        self.topology.add_pod(row, node)
        pod = self.pod(row)
        if node != NO_NODE and host_ports(pod):
            self._used_ports.setdefault(node, UsedPorts()).add(pod)
        if row in self._claim_names:
            self._attach_limits.add_pod(row, node)
            self._exclusive_disks.add_pod(row, node)
        if row in self._device_claim_names and self._devices is not None:
            self._devices.add_pod(row, node)

    def filter(self, row: int) -> Iterator[FilterResult]:
        """Yield for every filter the reason why it excludes nodes, the nodes that pass it, and what names the
        causes. A filter that excludes no node may be left out.

        The pod itself must be on no node. Raise `Undecidable`.
        """
        tolerated, affine = self.selected_nodes(row)
        pod = self.pod(row)
        yield FilterResult(NOT_READY, self._ready)
        yield FilterResult(A_TAINT, tolerated, partial(untolerated_taints, pod, *self._node_taints))
        causes = partial(unmatched_labels, pod, required_selector(pod), self.nodes)
        yield FilterResult(SELECTION, affine, causes)
        yield from self._filter_by_pods(row)

    def allowed(self, row: int, among: Nodes) -> Nodes:
        """Return bool[nodes]: the nodes `among` these that pass every filter. Raise `Undecidable`."""
        template = int(self._template[row])
        if template not in self._unchanging:
            tolerated, affine = self.selected_nodes(row)
            self._unchanging[template] = self._ready & tolerated & affine
        found: Nodes = self._unchanging[template] & among
        for one in self._filter_by_pods(row):
            found &= one.nodes
        return found

    def _filter_by_pods(self, row: int) -> Iterator[FilterResult]:
        """Apply the filters that depend on where other pods are, in the order of `filter`."""
        tolerated, affine = self.selected_nodes(row)
        if row in self._claim_names:
            yield from self._filter_volumes(row)
        pod = self.pod(row)
        if host_ports(pod):
            free = np.ones(self._snapshot.node_count, bool)
            for node, used in self._used_ports.items():
                free[node] = not used.conflict(pod)
            yield FilterResult("a host port", free, partial(self._taken_ports, pod))
        yield from self.topology.filter(row, affine, tolerated)
        if row in self._device_claim_names:
            if self._devices is None:
                raise Undecidable("its device claims need ResourceSlices, which are not in the snapshot")
            yield FilterResult("the devices that its claims need", self._devices.filter(row))

    def _taken_ports(self, pod: Pod, excluded: Nodes) -> Counter[str]:
        """Return how many of the `excluded` nodes, bool[nodes], have taken each host port of a pod."""
        found: Counter[str] = Counter()
        for node in np.flatnonzero(excluded).tolist():
            found.update({port_text(port): 1 for port in self._used_ports[node].conflicting(pod)})
        return found

    def _filter_volumes(self, row: int) -> Iterator[FilterResult]:
        """Apply the filters of volumes to a pod that has some. Raise `Undecidable`."""
        for claim in self._claim_names[row].split():
            if claim.startswith(INLINE_VOLUME):
                continue
            # A pod that moves gets another ephemeral volume, wherever it goes.
            if row >= self._snapshot.placed or not claim.startswith(EPHEMERAL_CLAIM):
                name = claim.removeprefix(EPHEMERAL_CLAIM)
                nodes, affinity = self._reaching(row, name)
                yield FilterResult("the topology of a volume", nodes, unreached(name, affinity, self.nodes))
        attaching = self._attach_limits.filter(row)
        causes = counted_causes(lambda: self._attach_limits.causes(row))
        yield FilterResult("the number of volumes that they attach", attaching, causes)
        unshared = self._exclusive_disks.filter(row)
        if unshared is not None:
            causes = counted_causes(lambda: self._exclusive_disks.causes(row))
            yield FilterResult("a disk that another pod of the node has", unshared, causes)

    def pod(self, row: int) -> Pod:
        """Return a pod with the spec of its template and without metadata."""
        template = int(self._template[row])
        if template not in self._pods:
            self._pods[template] = decoded_spec(self._snapshot.templates["spec"][template].as_py())
        return self._pods[template]

    def selected_nodes(self, row: int) -> tuple[Nodes, Nodes]:
        """Return bool[nodes] twice: the nodes whose taints a pod tolerates, and the nodes that match its node
        selector and its required node affinity.
        """
        template = int(self._template[row])
        if template not in self._selected:
            pod = self.pod(row)
            tolerations = pod.spec.tolerations or ()
            tainted = [all(tolerates(tolerations, taint) for taint in taints) for taints in self._taints]
            tolerated = np.array(tainted, bool)[self._taint_code]
            affine = self.nodes.where(
                required_selector(pod), partial(matches_node, pod), *(pod.spec.node_selector or ())
            )
            self._selected[template] = tolerated, affine
        return self._selected[template]

    @cached_property
    def _node_taints(self) -> tuple[list[tuple[Taint, ...]], NDArray[np.int64]]:
        """Return the distinct sets of taints that repel pods, and int64[nodes]: the set of each node."""
        known, codes = self.nodes.taint_sets
        repelling = [
            tuple(taint for taint in taints if taint.effect in REPELLING_EFFECTS) for taints in known
        ]
        cordoned = self._snapshot.nodes["unschedulable"].to_numpy(zero_copy_only=False)
        # Each set appears twice: a cordoned node has one taint more, as the scheduler treats it.
        distinct = [*repelling, *((*taints, CORDON) for taints in repelling)]
        return distinct, codes + len(known) * cordoned

    @property
    def _taints(self) -> list[tuple[Taint, ...]]:
        return self._node_taints[0]

    @property
    def _taint_code(self) -> NDArray[np.int64]:
        return self._node_taints[1]

    def _reaching(self, row: int, claim: str) -> tuple[Nodes, NodeSelector | None]:
        """Return bool[nodes]: the nodes that reach the volume of a claim, and what selects them. Raise
        `Undecidable` if the snapshot does not hold the claim or its volume.
        """
        namespace = self._snapshot.pods["namespace"][row].as_py()
        found = self._volumes.get((namespace, claim))
        if found is None:
            raise Undecidable(f"claim {claim} is not in the snapshot")
        affinity = found.affinity
        if affinity is None:
            raise Undecidable(f"volume {found.volume} of claim {claim} is not in the snapshot")
        if affinity not in self._reach:
            selector = _selector.decode(affinity)
            self._reach[affinity] = self.nodes.selected(selector), selector
        return self._reach[affinity]

    @cached_property
    def _volumes(self) -> dict[tuple[str, str], _Volume]:
        """Map (namespace, claim) to the volume."""
        return {
            (row["namespace"], row["claim"]): _Volume(
                row["volume"],
                row["node_affinity"],
                AttachedVolume(row.get("driver", ""), row.get("handle", "")),
            )
            for row in self._snapshot.volumes.to_pylist()
        }

    @cached_property
    def _attach_limits(self) -> AttachLimits:
        namespaces = self._snapshot.pods["namespace"]
        found = {}
        if self._snapshot.attach_limits.num_rows:
            for row, text in self._claim_names.items():
                namespace = namespaces[row].as_py()
                volumes = (self._attached(namespace, name) for name in text.split())
                found[row] = frozenset(volume for volume in volumes if volume is not None)
        return AttachLimits(self._snapshot, found)

    @cached_property
    def _exclusive_disks(self) -> ExclusiveDisks:
        return ExclusiveDisks(self._snapshot, self._claim_names)

    def _attached(self, namespace: str, claim: str) -> AttachedVolume | None:
        """Return the CSI volume that a node attaches for a claim, or for a cloud disk that the pod spec
        names; None if it attaches none.
        """
        if claim.startswith(INLINE_VOLUME):
            disk = attached_as(claim)
            return AttachedVolume(*disk) if disk is not None else None
        found = self._volumes.get((namespace, claim.removeprefix(EPHEMERAL_CLAIM)))
        return found.csi if found is not None else None

    @cached_property
    def _devices(self) -> DeviceClaims | None:
        """Return the device claims of pods; None if the snapshot holds no ResourceSlices."""
        try:
            known = dynamic_resources(self._snapshot)
        except InvalidInput:
            return None
        return DeviceClaims(self._snapshot, known, self._device_claim_names)

    @property
    def _used_ports(self) -> dict[int, UsedPorts]:
        """Map a node to the host ports that its pods use; nodes without any are left out."""
        if self._ports is None:
            self._ports = {}
            specs = self._snapshot.templates["spec"].to_pylist()
            with_ports = [row for row, spec in enumerate(specs) if '"hostPort"' in spec]
            rows = np.flatnonzero(np.isin(self._snapshot.column("template"), with_ports)).tolist()
            node = self._snapshot.column("node")
            for row in rows:
                self._ports.setdefault(int(node[row]), UsedPorts()).add(self.pod(row))
        return self._ports


def required_selector(pod: Pod) -> NodeSelector | None:
    """Return the required node affinity of a pod; None if it has none."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    return affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
