"""Admits pods one by one, and ends pods for critical ones. The acting module."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from engine.admission.admitted import NodeAllocations
from engine.admission.decision import Preemption
from engine.admission.failures import UNEXPECTED, InsufficientResource
from engine.admission.preemption import POLICIES
from engine.admission.verdict import Verdict, decide
from engine.api.decisions import Decisions, Measured
from engine.api.defaults import apply_defaults
from engine.api.documents import parse_pods
from engine.api.errors import InvalidInput, KubengineError
from engine.api.events import WARNING, EventRecorder
from engine.api.kubengine_config import AdmissionSection, PreemptionSection
from engine.api.lifecycle import (
    AdmissionRejected,
    KillPod,
    PodEnd,
    PodKills,
    ReportWaiting,
    longest_grace,
    report_nothing,
)
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.qos import is_critical, qos_class
from engine.api.query import expect_known
from engine.metrics import Registry

PREEMPTING: Final = "Preempting"
WAITING_FOR_RESOURCES: Final = "WaitingForResources"
MESSAGE: Final = "Preempted in order to admit critical pod"
CONDITION_REASON: Final = "TerminationByKubelet"
CONDITION_MESSAGE: Final = "Pod was preempted by Kubelet to accommodate a critical pod."

_KEPT_VERDICTS = 20

log = logging.getLogger("kubengine.admission")


class Admission:
    """Admit pods to a node.

    `reserve(pod)` decides at once and counts the pod from then on; `end_victims` ends its victims and returns
    when they have stopped; `admit` does both. `kill_pod` ends a victim with its own grace period. Call
    `terminating(uid)` for a pod that will end, `remove(uid)` for one that holds nothing any longer, and `add`
    for pods that were there before (a restart of the agent), which are not checked. `patience` is
    `admission.patience`.
    """

    def __init__(
        self,
        *,
        node: Node,
        kill_pod: KillPod,
        recorder: EventRecorder,
        registry: Registry,
        decisions: Decisions | None = None,
        section: PreemptionSection | None = None,
        admission_section: AdmissionSection | None = None,
        pods: Iterable[Pod] = (),
    ) -> None:
        """Raise `InvalidInput` for an unknown policy and for what `NodeAllocations` refuses."""
        self._section = section or PreemptionSection()
        if self._section.policy not in POLICIES:
            raise InvalidInput(
                f"expected one of {', '.join(POLICIES)}, got {self._section.policy!r}",
                subject="preemption.policy",
            )
        self._node, self._node_recorded = node, False
        self.admitted = NodeAllocations(node, pods)
        admission_section = admission_section or AdmissionSection()
        self.patience: float = admission_section.patience
        self._kills = PodKills(kill_pod)
        self._recorder = recorder
        self._decisions = decisions or Decisions(time.time)
        self._decisions.remembered["admission"] = self._remembered
        self._preemptions = registry.counter(
            "kubelet_preemptions",
            "Cumulative number of pod preemptions by preemption resource",
            ["preemption_signal"],
        )
        self._freed = asyncio.Event()
        self._verdicts: deque[dict[str, Any]] = deque(maxlen=_KEPT_VERDICTS)

    async def start(self) -> None:
        """Do nothing; admission has no task of its own."""

    async def stop(self) -> None:
        """Stop waiting for victims."""
        await self._kills.stop()

    def set_node(self, node: Node) -> None:
        """Set changed allocatable, labels or taints, which count for later pods."""
        before, self._node = self.admitted.node, node
        self.admitted.set_node(node)
        if self.admitted.node is not before:
            self._node_recorded = False

    def add(self, pod: Pod) -> None:
        """Add a pod that is already on the node, whether or not it fits; a known one is updated (resize)."""
        if pod.uid in self.admitted:
            self.admitted.update(pod)
        elif self.admitted.find(pod.uid) is None:
            self.admitted.add(pod)
        self._measured("added", lambda: {"pod": pod}, pod)

    def terminating(self, uid: str) -> None:
        """Stop counting a pod that will end; others still wait for what it holds."""
        self.admitted.terminating(uid)
        self._measured("leaves", dict, uid=uid)

    def remove(self, uid: str) -> None:
        """Remove a pod that has ended; an unknown one is fine."""
        self.admitted.remove(uid)
        self._measured("removed", dict, uid=uid)
        self._notify()

    def arrives(self, pod: Pod) -> None:
        """Record that a pod arrives, to be judged."""
        self._measured("arrives", lambda: {"pod": pod}, pod)

    def _measured(
        self, name: str, inputs: Callable[[], Mapping[str, Any]], pod: Pod | None = None, *, uid: str = ""
    ) -> None:
        """Record what happens to a pod, after the node as it is then."""
        record = self._decisions.record_measured
        if record is None:
            return
        if not self._node_recorded:
            self._node_recorded = True
            record(Measured("node", "node", inputs={"node": self._node}))
        # The encoded pod is large; `inputs` builds it only if somebody records.
        whose, uid = (pod.full_name, pod.uid) if pod is not None else ("", uid)
        record(Measured("pod", name, pod=whose, uid=uid, inputs=inputs()))

    def _remembered(self) -> Mapping[str, Any]:
        admitted = self.admitted
        return {"node": self._node, "pods": list(admitted.pods.values()), "leaving": admitted.leaving}

    async def wait_for_resources(self, pod: Pod, report: ReportWaiting = report_nothing) -> None:
        """Return when no terminating pod holds what a reserved pod needs, so that it may start.

        `report` receives which pods it waits for. A pod that others have preempted meanwhile waits for its
        end, or until it stays after all. Raises `AdmissionRejected` when the patience is over, counted from
        the longest grace period of the terminating pods; the pod no longer counts then.
        """
        holders = self.admitted.in_the_way(pod)
        if holders:
            leaving = [other for uid in holders if (other := self.admitted.find(uid)) is not None]
            names = ", ".join(sorted(other.full_name for other in leaving))
            await report(WAITING_FOR_RESOURCES, f"terminating pods still hold what this pod needs: {names}")
            try:
                async with asyncio.timeout(longest_grace(leaving) + self.patience):
                    await self._wait_until_it_fits(pod)
            except TimeoutError:
                self._reject_after_waiting(pod)
        else:
            await self._wait_until_it_fits(pod)
        self.admitted.started(pod.uid)

    async def _wait_until_it_fits(self, pod: Pod) -> None:
        # Not among the admitted: a pod with a higher claim preempts it while it waits.
        while pod.uid not in self.admitted or self.admitted.in_the_way(pod):
            await self._freed.wait()

    def _reject_after_waiting(self, pod: Pod) -> None:
        failure = self.admitted.short_while_others_terminate(pod)
        self.remove(pod.uid)
        raise AdmissionRejected(
            failure.reason, f"{failure.message}; terminating pods did not release it in time"
        )

    def _notify(self) -> None:
        # Whoever waits holds the old event, and those who come later wait for the next change.
        self._freed.set()
        self._freed = asyncio.Event()

    def check(self, pod: Pod, *, policy: str = "") -> Verdict:
        """Return what `admit` would decide, without doing it."""
        return decide(
            self.admitted,
            pod,
            policy=policy or self._section.policy,
            time_limit=float(self._section.time_limit),
        )

    async def admit(self, pod: Pod) -> Verdict:
        """Admit the pod after its victims have stopped, or raise `AdmissionRejected`."""
        verdict = self.reserve(pod)
        await self.end_victims(verdict)
        self.admitted.started(pod.uid)
        return verdict

    def reserve(self, pod: Pod) -> Verdict:
        """Admit the pod or raise `AdmissionRejected` with the reason and message for its status.

        From here on, its victims no longer count and it does.
        """
        self._measured("judged", dict, pod)
        # Most pods fit. Only the others need the full check, which explains every failure.
        if self.admitted.expect_if_it_fits(pod):
            return Verdict(pod.full_name, True, is_critical(pod))
        try:
            verdict = self.check(pod)
        except InvalidInput as error:
            raise AdmissionRejected(UNEXPECTED, str(error)) from error
        # A plain yes explains nothing, and would push the others out of the few that are kept.
        if verdict.failures:
            self._verdicts.append(verdict.describe(self._names()))
        if not verdict.admit:
            lacking = [one.resource for one in verdict.failures if isinstance(one, InsufficientResource)]
            raise AdmissionRejected(verdict.reason, verdict.message, lacking=lacking)
        # Before the pod is counted, and before anything is awaited: the next pod is judged against both.
        for uid in verdict.victims:
            self.admitted.terminating(uid)
        self.admitted.expect(pod)
        return verdict

    def give_up(self, uid: str, verdict: Verdict) -> None:
        """Release a reserved pod that will not come; none of its victims has been ended."""
        for victim in verdict.victims:
            self.admitted.stay(victim)
            self._measured("stays", dict, uid=victim)
        self.remove(uid)

    async def end_victims(self, verdict: Verdict) -> None:
        """End the victims of a reserved pod in parallel, and wait for them.

        A victim that cannot be killed is logged, counts again, and does not keep the pod out.
        """
        preemption = verdict.preemption
        if preemption is None:
            return
        victims = [pod for uid in preemption.victims if (pod := self.admitted.find(uid)) is not None]
        names = ", ".join(pod.full_name for pod in victims)
        log.info("preempting %s for %s (policy %s)", names, preemption.preemptor, preemption.policy)
        await asyncio.gather(*(self._end(pod, preemption) for pod in victims))

    async def _end(self, pod: Pod, preemption: Preemption) -> None:
        inputs = {
            "preemptor": preemption.preemptor,
            "preemptorPriority": preemption.priority,
            "priority": pod.spec.priority,
            "qos": qos_class(pod),
            "policy": preemption.policy,
            "short": dict(preemption.requirements),
        }
        self._decisions.pod(pod, "preemption", "preempted", MESSAGE, inputs)
        self._recorder.pod(pod, WARNING, PREEMPTING, MESSAGE)
        end = PodEnd(
            PREEMPTING,
            MESSAGE,
            condition_reason=CONDITION_REASON,
            condition_message=CONDITION_MESSAGE,
            by_exit_codes=True,
        )
        try:
            await self._kills.end(pod, end)
        except (KubengineError, TimeoutError) as error:
            why = "it did not terminate in time" if isinstance(error, TimeoutError) else error
            log.error("pod %s could not be preempted: %s", pod.full_name, why)
            # As the kubelet, which logs the failure and admits the pod: the victim still ends some day.
            self._decisions.pod(pod, "preemption", "failed", str(why), inputs)
            self.admitted.stay(pod.uid)
            self._measured("stays", dict, pod)
            self._notify()
            return
        # The kubelet counts the first insufficient resource only.
        self._preemptions.inc(preemption.requirements[0][0] if preemption.requirements else "")
        self.remove(pod.uid)

    def describe(self) -> dict[str, Any]:
        """Return sums, limits, policy and the latest decisions other than a plain yes."""
        admitted = self.admitted
        return {
            "policy": self._section.policy,
            "pods": len(admitted),
            "podLimit": admitted.node.pod_limit,
            "allocatable": dict(admitted.node.allocatable),
            "used": {name: amount for name, amount in admitted.used.items() if amount},
            "decisions": list(self._verdicts),
        }

    async def act(self, action: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Run `dry-run` with `pod` (YAML or JSON of one Pod) and optionally `policy`: what would
        `admit` do?
        """
        if action != "dry-run":
            raise InvalidInput(f"unknown action {action!r}; expected dry-run", subject="admission")
        expect_known(query, ("pod", "policy"), "admission dry-run")
        if "pod" not in query:
            raise InvalidInput("expected the pod as YAML or JSON in `pod`", subject="admission dry-run")
        pods, _ = parse_pods(query["pod"].encode(), "pod")
        if len(pods) != 1:
            raise InvalidInput(f"expected one Pod, got {len(pods)}", subject="admission dry-run")
        pod = pods[0]
        apply_defaults(pod)
        pod.metadata.uid = f"dry-run of {pod.full_name}"
        return self.check(pod, policy=query.get("policy", "")).describe(self._names())

    def _names(self) -> dict[str, str]:
        return {uid: pod.full_name for uid, pod in self.admitted.pods.items()}
