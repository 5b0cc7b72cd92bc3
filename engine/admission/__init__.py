"""Does the node take a pod, and who must go for it?

`failures`, `selectors`, `ports`, `predicates` and `admitted` decide whether a pod fits, in the kubelet's
order and words; `preemption` (with `fewest` for the policies beside the kubelet's, and `decision` for the
account that each answer gives of itself) chooses victims; `everywhere` asks many nodes at once. All of these
are pure, and importing this package loads nothing else. `manager` acts: it admits pods one by one, kills
victims, records events and counts. May touch `engine.api`, `tables`, `_fast` and `metrics`.
"""

from engine.admission.admitted import AdmittedPods
from engine.admission.decision import AdmissionStep, NotEnoughToPreempt, PassedOver, Preemption
from engine.admission.failures import Failure, InsufficientResource, PredicateFailure, WrongOS
from engine.admission.predicates import NodeFacts
from engine.admission.preemption import POLICIES, preempt
from engine.admission.verdict import Verdict, decide

__all__ = [
    "POLICIES",
    "AdmissionStep",
    "AdmittedPods",
    "Failure",
    "InsufficientResource",
    "NodeFacts",
    "NotEnoughToPreempt",
    "PassedOver",
    "PredicateFailure",
    "Preemption",
    "Verdict",
    "WrongOS",
    "decide",
    "preempt",
]
