"""Decides which pods a node under pressure still admits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.api.lifecycle import AdmissionRejected
from engine.api.pod import Pod
from engine.api.qos import BEST_EFFORT, is_critical, qos_class
from engine.api.scheduling import Toleration
from engine.eviction.message import REASON
from engine.eviction.signals import MEMORY_PRESSURE

MEMORY_PRESSURE_TAINT: Final = "node.kubernetes.io/memory-pressure"
_EFFECT = "NoSchedule"


def check(pod: Pod, conditions: Sequence[str]) -> None:
    """Raise `AdmissionRejected` (reason Evicted) for a pod that the node rejects.

    Critical pods are always admitted. Under memory pressure alone, so are all pods that are not BestEffort
    or that tolerate its taint; disk and pid pressure reject all others.
    """
    if not conditions or is_critical(pod):
        return
    if list(conditions) == [MEMORY_PRESSURE] and (
        qos_class(pod) != BEST_EFFORT or any(map(_tolerates, pod.spec.tolerations or ()))
    ):
        return
    raise AdmissionRejected(REASON, f"The node had condition: [{' '.join(conditions)}]. ")


def _tolerates(toleration: Toleration) -> bool:
    if toleration.effect not in ("", _EFFECT):
        return False
    if toleration.key not in ("", MEMORY_PRESSURE_TAINT):
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.key != "" and toleration.value == ""
