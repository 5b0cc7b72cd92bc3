"""Define the questions that a plan answers, one per module: a function of a snapshot and parameters.

A question calls the kernels and decisions of the package that owns the rule. It states a rule of its own only
where no node makes the decision, and then a note of the answer says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.plan.answers.answer import Answer
from engine.plan.questions.admit import AdmitParameters, admit
from engine.plan.questions.cgroups import CgroupsParameters, cgroups
from engine.plan.questions.claims import ClaimsParameters, claims
from engine.plan.questions.cpus import CpusParameters, check_cpus, cpus
from engine.plan.questions.device_taint import DeviceTaintParameters, device_taint
from engine.plan.questions.devices import DevicesParameters, check_devices, devices
from engine.plan.questions.drain import DrainParameters, drain
from engine.plan.questions.evict import EvictParameters, evict
from engine.plan.questions.headroom import HeadroomParameters, headroom
from engine.plan.questions.image_gc import ImageGCParameters, image_gc
from engine.plan.questions.pending import PendingParameters, pending
from engine.plan.questions.preempt import PreemptParameters, preempt
from engine.plan.questions.reserve import ReserveParameters, reserve
from engine.plan.questions.rightsize import RightsizeParameters, rightsize
from engine.plan.questions.rollout import RolloutParameters, rollout
from engine.plan.reading.requested_pods import check_resources


@dataclass(frozen=True, slots=True)
class Question:
    """Describe a question: its `function` of a snapshot and parameters, and a `summary` for people.

    With `per_node`, the rows of a node depend on that node alone, so nodes can be split into shards. `check`
    sees all nodes before they are split; it returns notes, or raises `InvalidInput`.
    """

    name: str
    parameters: type[msgspec.Struct]
    function: Callable[..., Answer]
    summary: str
    per_node: bool = True
    check: Callable[[Any, Any], list[str]] = lambda snapshot, parameters: []

    def ask(self, snapshot: Any, parameters: msgspec.Struct) -> Answer:
        return self.function(snapshot, parameters)


QUESTIONS = {
    question.name: question
    for question in (
        Question(
            "preempt",
            PreemptParameters,
            preempt,
            "Which pods would this pod preempt, on each node?",
            check=check_resources,
        ),
        Question(
            "admit", AdmitParameters, admit, "How many of this pod fit, and where?", check=check_resources
        ),
        Question(
            "evict",
            EvictParameters,
            evict,
            "Which pods are evicted under memory, disk or PID pressure, and when does it end?",
        ),
        Question(
            "image-gc", ImageGCParameters, image_gc, "What would image GC free, and which images would go?"
        ),
        Question(
            "cgroups",
            CgroupsParameters,
            cgroups,
            "Which cgroup values would another version or setting give, and which are faulty?",
        ),
        Question(
            "devices",
            DevicesParameters,
            devices,
            "Can N more devices be allocated under a topology policy, and where?",
            check=check_devices,
        ),
        Question(
            "cpus",
            CpusParameters,
            cpus,
            "Which nodes still take pods with exclusive CPUs, and what does fragmentation cost?",
            check=check_cpus,
        ),
        Question(
            "claims",
            ClaimsParameters,
            claims,
            "On which nodes could a ResourceClaim be allocated, and how often?",
            per_node=False,
        ),
        Question(
            "device-taint",
            DeviceTaintParameters,
            device_taint,
            "Whom would a taint on devices of a DRA driver evict?",
            per_node=False,
        ),
        Question(
            "rightsize",
            RightsizeParameters,
            rightsize,
            "Which requests follow from recorded use, and what would have happened under them?",
            per_node=False,
        ),
        Question(
            "rollout",
            RolloutParameters,
            rollout,
            "What would a new kubelet configuration change, and which pods would it end?",
        ),
        Question(
            "reserve",
            ReserveParameters,
            reserve,
            "What should nodes reserve, and which of them reserve too little?",
            per_node=False,
        ),
        Question("drain", DrainParameters, drain, "Where would the pods of these nodes go?", per_node=False),
        Question(
            "headroom",
            HeadroomParameters,
            headroom,
            "How many more of these workloads fit, and what is left if a node or a zone fails?",
            per_node=False,
        ),
        Question(
            "pending",
            PendingParameters,
            pending,
            "Why are pods pending, and which node groups would have to grow?",
            per_node=False,
        ),
    )
}
