"""Admit the pods of a node one after another, as a kubelet that starts does with all of them. Pure."""

from __future__ import annotations

from engine.admission.admitted import NodeAllocations
from engine.admission.verdict import decide
from engine.api.errors import InvalidInput
from engine.api.node import Node
from engine.api.pod import Pod

ADMITTED = "admitted"
NOT_JUDGED = "not judged"


class Readmission:
    """Begin with an empty node; `victims` maps preempted uids to the name of the critical pod."""

    def __init__(self, node: Node) -> None:
        self.victims: dict[str, str] = {}
        self._admitted = NodeAllocations(node)

    def judge(self, pod: Pod) -> tuple[str, str]:
        """Return the verdict (a reason, `ADMITTED` or `NOT_JUDGED`) and its message, and count the pod if it
        is admitted.
        """
        try:
            verdict = decide(self._admitted, pod)
            if not verdict.admit:
                return verdict.reason, verdict.message
            # At once, while a running node waits until they have stopped: there is no time in this question.
            for uid in verdict.victims:
                self.victims[uid] = pod.full_name
                self._admitted.remove(uid)
            self._admitted.add(pod)
        except InvalidInput as error:
            return NOT_JUDGED, str(error)
        return ADMITTED, ""
