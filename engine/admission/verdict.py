"""Answers "would the node admit this pod?". Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from engine.admission.admitted import NodeAllocations
from engine.admission.decision import NotEnoughToPreempt, Preemption
from engine.admission.failures import UNEXPECTED, Failure, InsufficientResource
from engine.admission.preemption import KUBELET, preempt
from engine.api.pod import Pod
from engine.api.qos import is_critical


class Verdict(NamedTuple):
    """Hold the answer: yes; yes after `preemption.victims` have ended; or no, with reason and message for the
    pod's status.

    `failures` are all failed checks in the kubelet's order, including those that preemption cures.
    """

    pod: str
    admit: bool
    critical: bool = False
    failures: tuple[Failure, ...] = ()
    preemption: Preemption | None = None
    reason: str = ""
    message: str = ""

    @property
    def victims(self) -> tuple[str, ...]:
        """Return the uids of the pods that have to end first."""
        return tuple(self.preemption.victims) if self.preemption is not None else ()

    def describe(self, names: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the answer ready for JSON, including the explanation of a preemption; `names` are full names
        by uid.
        """
        return {
            "pod": self.pod,
            "admit": self.admit,
            "critical": self.critical,
            "reason": self.reason,
            "message": self.message,
            "failures": [failure.describe() for failure in self.failures],
            "preemption": self.preemption.describe(names) if self.preemption is not None else None,
        }


def decide(admitted: NodeAllocations, pod: Pod, *, policy: str = KUBELET, time_limit: float = 0.1) -> Verdict:
    """Check a pod; if it is critical and fails only for resources, choose victims (kubelet v1.36).

    Any other failed check ends it, and then only such checks are given as the reason. Raises `InvalidInput`
    as `NodeAllocations.check` and `preempt` do.
    """
    failures = tuple(admitted.check(pod))
    critical = is_critical(pod)
    if not failures:
        return Verdict(pod.full_name, True, critical)
    short = [failure for failure in failures if isinstance(failure, InsufficientResource)]
    others = [failure for failure in failures if not isinstance(failure, InsufficientResource)]
    if not critical or others:
        # `HandleAdmissionFailure` drops the shortages that preemption could cure before it gives up.
        first = (others if critical else failures)[0]
        return Verdict(pod.full_name, False, critical, failures, None, first.reason, first.message)
    requirements = [(failure.resource, failure.missing) for failure in short]
    try:
        preemption = preempt(admitted.table, pod, requirements, policy=policy, time_limit=time_limit)
    except NotEnoughToPreempt as error:
        message = (
            "Unexpected error while attempting to recover from admission failure: preemption: "
            f"error finding a set of pods to preempt: {error.message}"
        )
        return Verdict(pod.full_name, False, critical, failures, None, UNEXPECTED, message)
    return Verdict(pod.full_name, True, critical, failures, preemption)
