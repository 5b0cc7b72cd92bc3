"""Keeps running sums of the pods admitted to a node, and checks whether another one fits. No I/O."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from engine._fast.preemption.ledger import Ledger
from engine.admission.failures import NODE_PORTS, Failure, InsufficientResource
from engine.admission.predicates import (
    NATIVE,
    NodeFacts,
    UsedPorts,
    counted_requests,
    is_counted,
    other_failures,
    resource_failures,
    wrong_os,
)
from engine.api.errors import Bug, InvalidInput
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.resources import PODS
from engine.tables import PodTable, requests_of
from engine.tables.cells import INT64
from engine.tables.pods import PodCells

UNLIMITED: Final = 2**63 - 1
"""The largest sum, and the limit of a resource that is not counted."""


class _Terminating(msgspec.Struct, frozen=True):
    """Hold a terminating pod: `amounts` is what it still holds; `holds` tells whether it had started."""

    pod: Pod
    amounts: dict[str, int]
    holds: bool


def _inputs(node: Node) -> tuple[object, ...]:
    """Return the inputs of `NodeFacts` as they are now."""
    return node.metadata.name, dict(node.labels), list(node.spec.taints or ()), dict(node.allocatable)


class NodeAllocations:
    """Account for a node and its pods. `check` costs the same for any number of pods.

    New pods are checked against those that stay. A pod for which `terminating` was called no longer counts,
    as in the kubelet, but keeps what it holds until it is removed: `in_the_way` returns the terminating pods
    that an admitted pod has to wait for, so that running pods never exceed the node. A method that raises
    changes nothing.
    """

    def __init__(self, node: Node, pods: Iterable[Pod] = ()) -> None:
        """Raise `InvalidInput` for negative amounts, sums beyond 64 bits and repeated uids."""
        self.node = NodeFacts.of(node)
        self._inputs = _inputs(node)
        self.table = PodTable()
        self._sums = Sums(self.table, self.node)
        self._ports = UsedPorts()
        self._pods: dict[str, Pod] = {}
        self._terminating: dict[str, _Terminating] = {}
        self._coming: set[str] = set()
        for pod in pods:
            self.add(pod)

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: object) -> bool:
        return uid in self._pods

    @property
    def pods(self) -> Mapping[str, Pod]:
        """Return the pods by uid, in the order of their arrival."""
        return self._pods

    @property
    def leaving(self) -> Sequence[Pod]:
        """Return the pods that will end and no longer count."""
        return [terminating.pod for terminating in self._terminating.values()]

    @property
    def used(self) -> dict[str, int]:
        """Return the summed requests in the table's units: milli-CPU, and whole numbers for the rest."""
        return self._sums.by_name()

    def find(self, uid: str) -> Pod | None:
        """Return the pod with that uid, staying or terminating."""
        terminating = self._terminating.get(uid)
        return terminating.pod if terminating is not None else self._pods.get(uid)

    def set_node(self, node: Node) -> None:
        """Set the node's changed allocatable, labels or taints. Existing pods stay."""
        inputs = _inputs(node)
        if inputs == self._inputs:
            return
        facts, self._inputs = NodeFacts.of(node), inputs
        if facts != self.node:
            self.node = facts
            self._sums.set_node(facts)

    def check(self, pod: Pod) -> list[Failure]:
        """Return every failed check in the kubelet's order; none if the pod fits.

        Raises `InvalidInput` for a pod that is already there, and for amounts that are negative or beyond 64
        bits.
        """
        if pod.uid in self._pods or pod.uid in self._terminating:
            raise InvalidInput(f"uid {pod.uid} is already on the node", subject=pod.full_name)
        # Alone, as for the kubelet: nothing else is judged of a pod for another operating system.
        os_failure = wrong_os(pod)
        if os_failure is not None:
            return [os_failure]
        requests = requests_of(pod, self.table.resources)
        wanted = counted_requests(requests, pod, self.node.allocatable)
        failures = resource_failures(wanted, self.used, len(self._pods), self.node)
        failures += other_failures(pod, self.node, self._ports)
        return failures

    def add(self, pod: Pod) -> None:
        """Count a pod, whether or not it fits. Raises `InvalidInput` for a uid that is already there."""
        row = self.table.add(pod)
        if not self._sums.add(row):
            used, own = self.used, self._amounts(pod.uid)
            name = next(name for name in own if used[name] + own[name] > UNLIMITED)
            self.table.remove(pod.uid)
            raise InvalidInput(
                f"adding it makes the sum of {name} requests exceed 64 bits", subject=pod.full_name
            )
        self._ports.add(pod)
        self._pods[pod.uid] = pod

    def update(self, pod: Pod) -> None:
        """Update the pod's requests (a resize). Raises `InvalidInput` if it is not there."""
        before = self._pods.get(pod.uid)
        if before is None:
            raise InvalidInput("no pod with this uid on the node", subject=pod.full_name)
        coming = pod.uid in self._coming
        self.remove(pod.uid)
        try:
            self.add(pod)
        except InvalidInput:
            self.add(before)
            raise
        finally:
            # A pod that is resized before it starts still holds nothing.
            if coming:
                self._coming.add(pod.uid)

    def expect(self, pod: Pod) -> None:
        """Count a pod that has not started; until `started` it holds nothing. Raises like `add`."""
        self.add(pod)
        self._coming.add(pod.uid)

    def expect_if_it_fits(self, pod: Pod) -> bool:
        """Combine `check` and `expect` for an ordinary pod that fits; otherwise change nothing, and `check`
        tells why.
        """
        uid = pod.metadata.uid
        if (
            uid in self._terminating
            or len(self._pods) >= self.node.pod_limit
            or wrong_os(pod)
            or other_failures(pod, self.node, self._ports)
        ):
            return False
        row = self.table.add_ordinary(pod)
        if row is None:
            return False
        if not (self._sums.fits(row) and self._sums.add(row)):
            self.table.remove(uid)
            return False
        self._ports.add(pod)
        self._pods[uid] = pod
        self._coming.add(uid)
        return True

    def started(self, uid: str) -> None:
        """Note that an expected pod starts now."""
        self._coming.discard(uid)

    def terminating(self, uid: str) -> None:
        """Note that the pod will end: it no longer counts, and holds its resources until `remove`."""
        pod = self._pods.get(uid)
        if pod is None:
            return
        # A pod that ends before it has started gives nothing back that others could wait for.
        terminating = _Terminating(pod, {}, holds=False)
        if uid not in self._coming:
            terminating = _Terminating(pod, self._amounts(uid), holds=True)
        self.remove(uid)
        self._terminating[uid] = terminating

    def stay(self, uid: str) -> None:
        """Undo `terminating`, because the pod could not be ended."""
        if uid in self._terminating:
            self.add(self._terminating.pop(uid).pod)

    def in_the_way(self, pod: Pod) -> list[str]:
        """Return the uids of terminating pods that hold what an expected pod needs; none if it may start."""
        if not self._terminating:
            return []
        short = {failure.resource for failure in self._short(pod)}
        return [
            uid
            for uid, other in self._terminating.items()
            if other.holds
            # A slot for one more pod, and a port, are no amounts: any terminating pod gives the former back.
            and (PODS in short or short & other.amounts.keys() or _share_a_port(pod, other.pod))
        ]

    def short_while_others_terminate(self, pod: Pod) -> Failure:
        """Return what an expected pod lacks because of the pods `in_the_way`."""
        return next(iter(self._short(pod)), NODE_PORTS)

    def _short(self, pod: Pod) -> list[InsufficientResource]:
        """Return what is missing for an expected pod to start, with everything that terminating pods still
        hold.
        """
        wanted = self._amounts(pod.uid) if pod.uid in self._pods else {}
        held = self.used_beside(pod.uid)
        # Other pods that have not started wait as this one does; if they counted, two could wait for each
        # other.
        for uid in self._coming - {pod.uid}:
            for name, amount in self._amounts(uid).items():
                held[name] -= amount
        there = len(self._pods) - len(self._coming | {pod.uid})
        pods = there + sum(terminating.holds for terminating in self._terminating.values())
        failures = resource_failures(wanted, held, pods, self.node)
        return [failure for failure in failures if isinstance(failure, InsufficientResource)]

    def remove(self, uid: str) -> None:
        """Remove a pod that holds nothing any longer; an unknown one is fine."""
        self._terminating.pop(uid, None)
        self._coming.discard(uid)
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        self._sums.remove(self.table.row(uid))
        self._ports.remove(pod)
        self.table.remove(uid)

    def used_beside(self, uid: str) -> dict[str, int]:
        """Return the summed requests of all other pods, terminating ones included, in the table's units."""
        own = self._amounts(uid) if uid in self._pods else {}
        used = {name: amount - own.get(name, 0) for name, amount in self.used.items()}
        for other, terminating in self._terminating.items():
            if other != uid:
                for name, amount in terminating.amounts.items():
                    used[name] = used.get(name, 0) + amount
        return used

    def validate(self) -> None:
        """Compare the running sums with fresh ones, for tests. Raises `Bug`."""
        self.table.validate()
        sums: dict[str, int] = {}
        for uid in self._pods:
            for name, amount in self._amounts(uid).items():
                sums[name] = sums.get(name, 0) + amount
        if {name: amount for name, amount in self.used.items() if amount} != sums:
            raise Bug(f"running sums are {self.used}, the pods add up to {sums}", subject="NodeAllocations")

    def _amounts(self, uid: str) -> dict[str, int]:
        return self.table.requests(uid)


def _share_a_port(pod: Pod, other: Pod) -> bool:
    held = UsedPorts()
    held.add(other)
    return held.conflict(pod)


class Sums:
    """Sum rows of a pod table, in its units: milli-CPU, and whole numbers for the rest."""

    def __init__(self, table: PodTable, node: NodeFacts) -> None:
        self._table, self._node = table, node
        self._used = array(INT64)
        self._kept: tuple[PodCells, Ledger] | None = None

    def set_node(self, node: NodeFacts) -> None:
        self._node, self._kept = node, None

    def fits(self, row: int) -> bool:
        """Tell whether a row fits next to what is counted.

        False also if a closer look is needed, because of extended resources that the node does not have.
        """
        return self._ledger().fits(row)

    def add(self, row: int) -> bool:
        """Count a row; return False, without a change, if a sum would exceed 64 bits."""
        return self._ledger().add(row)

    def remove(self, row: int) -> None:
        self._ledger().remove(row)

    def by_name(self) -> dict[str, int]:
        return dict(zip(self._table.resources.in_order, self._used.tolist(), strict=False))

    def _ledger(self) -> Ledger:
        """Return the running sums, computed again if the table's memory was replaced or the node changed."""
        cells = self._table.cells
        # The kernel keeps pointers into the cells, which the table replaces when it grows.
        if self._kept is None or self._kept[0] is not cells:
            self._used = array(INT64, [*self._used, *[0] * (cells.resources - len(self._used))])
            names = self._table.resources.in_order[: cells.resources]
            limits = array(INT64, map(self._limit, names))
            self._kept = (cells, Ledger(cells.requests, self._used, limits))
        return self._kept[1]

    def _limit(self, name: str) -> int:
        if name not in NATIVE and not is_counted(name):
            return UNLIMITED
        return min(self._node.allocatable.get(name, 0), UNLIMITED)
