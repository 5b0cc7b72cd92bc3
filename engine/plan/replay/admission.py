"""Repeat the admission and preemption of a recorded node, on a node that may have other amounts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from engine.admission import NodeAllocations, decide
from engine.admission.readmission import ADMITTED
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import PreemptionSection
from engine.api.lifecycle import AdmissionRejected
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.eviction import admission as under_pressure
from engine.plan.rollout.amounts import with_allocatable


class ReplayVerdict(NamedTuple):
    """Hold the verdict on a pod that arrives: admitted, or a reason with its message; and the uids of its
    victims.
    """

    reason: str
    message: str = ""
    victims: Sequence[str] = ()


class AdmissionReplay:
    """Follow the pods of a node. `amounts(node)` returns its allocatable under the configuration."""

    def __init__(self, section: PreemptionSection, amounts: Callable[[Node], Mapping[str, Quantity]]) -> None:
        self._section, self._amounts = section, amounts
        self._admitted: NodeAllocations | None = None

    @property
    def begun(self) -> bool:
        """Tell whether the node is known."""
        return self._admitted is not None

    @property
    def pods(self) -> Mapping[str, Pod]:
        """Return the pods that count, by uid."""
        return self._admitted.pods if self._admitted is not None else {}

    def set_node(self, node: Node) -> None:
        """Take the node as it was recorded."""
        node = with_allocatable(node, self._amounts(node))
        if self._admitted is None:
            self._admitted = NodeAllocations(node)
        else:
            self._admitted.set_node(node)

    def add(self, pod: Pod) -> None:
        """Count a pod that is there already, or update its amounts."""
        there = self._there()
        if pod.uid in there:
            there.update(pod)
        elif there.find(pod.uid) is None:
            there.add(pod)

    def judge(self, pod: Pod, conditions: Sequence[str]) -> ReplayVerdict:
        """Decide about a pod that arrives, and count it if it is admitted."""
        try:
            under_pressure.check(pod, conditions)
        except AdmissionRejected as rejected:
            return ReplayVerdict(rejected.reason, rejected.message)
        there = self._there()
        try:
            verdict = decide(
                there, pod, policy=self._section.policy, time_limit=float(self._section.time_limit)
            )
        except InvalidInput as error:
            return ReplayVerdict("UnexpectedAdmissionError", str(error))
        if not verdict.admit:
            return ReplayVerdict(verdict.reason, verdict.message)
        for uid in verdict.victims:
            there.terminating(uid)
        there.expect(pod)
        return ReplayVerdict(ADMITTED, victims=tuple(verdict.victims))

    def leave(self, uid: str) -> None:
        self._there().terminating(uid)

    def remove(self, uid: str) -> None:
        self._there().remove(uid)

    def stay(self, uid: str) -> None:
        self._there().stay(uid)

    def find(self, uid: str) -> Pod | None:
        return self._there().find(uid)

    def _there(self) -> NodeAllocations:
        if self._admitted is None:
            raise InvalidInput("a pod is recorded before the node", subject="record")
        return self._admitted
