"""Decides whether a node admits a pod, and which pods must go for it.

`failures`, `selectors`, `ports`, `predicates` and `admitted` check whether a pod fits, in the kubelet's
order and words. `preemption` chooses victims (`fewest` for the additional policies; `decision` explains each
answer); `everywhere` asks many nodes at once. All of these are pure, and importing this package loads
nothing else. `manager` acts: it admits pods one by one, kills victims, records events and counts. The
package may import `engine.api`, `tables`, `_fast` and `metrics`.
"""

from engine.admission.admitted import NodeAllocations
from engine.admission.decision import AdmissionStep, NotEnoughToPreempt, PassedOver, Preemption
from engine.admission.failures import Failure, InsufficientResource, PredicateFailure, WrongOS
from engine.admission.predicates import NodeFacts
from engine.admission.preemption import POLICIES, preempt
from engine.admission.verdict import Verdict, decide

__all__ = [
    "POLICIES",
    "AdmissionStep",
    "Failure",
    "InsufficientResource",
    "NodeAllocations",
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
