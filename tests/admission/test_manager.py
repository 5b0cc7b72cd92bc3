"""Admission acts: victims, events, metrics, waiting, failures. `kill_pod` stands for the node's workers."""

from __future__ import annotations

import asyncio

import pytest

from engine.admission.manager import Admission
from engine.api.documents import convert
from engine.api.errors import InvalidInput, Unavailable
from engine.api.events import EventRecorder
from engine.api.kubengine_config import AdmissionSection, PreemptionSection
from engine.api.lifecycle import AdmissionRejected, PodEnd, PodKills
from engine.api.node import Node
from engine.api.pod import Pod
from engine.metrics import Registry
from tests.waiting import PATIENCE


def make_pod(
    name: str, cpu: str = "", memory: str = "", *, static=False, priority=None, protected=False
) -> Pod:
    annotations = {"kubernetes.io/config.source": "file"} if static else {}
    if protected:
        annotations["kubengine.dev/do-not-preempt"] = "true"
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    spec = {"containers": [{"name": "c", "resources": {"requests": requests}}]}
    if priority is not None:
        spec["priority"] = priority
    return convert(
        {"metadata": {"name": name, "uid": name, "annotations": annotations}, "spec": spec}, Pod, name
    )


def make_node(**allocatable: str) -> Node:
    amounts = {"cpu": "2", "memory": "2Gi", "pods": "10"} | allocatable
    return convert({"metadata": {"name": "n"}, "status": {"allocatable": amounts}}, Node, "node")


class Situation:
    def __init__(
        self,
        pods: list[Pod],
        *,
        policy: str = "kubelet",
        cannot_kill: tuple[str, ...] = (),
        patience: float = 60.0,
    ) -> None:
        self.killed: list[tuple[str, PodEnd]] = []
        self.cannot_kill = cannot_kill
        self.recorder = EventRecorder(lambda: 0.0)
        self.registry = Registry()
        self.admission = Admission(
            node=make_node(),
            kill_pod=self.kill,
            recorder=self.recorder,
            registry=self.registry,
            section=PreemptionSection(policy=policy),
            admission_section=AdmissionSection(patience=patience),
            pods=pods,
        )

    async def kill(self, pod: Pod, end: PodEnd) -> None:
        await asyncio.sleep(0)
        if pod.uid in self.cannot_kill:
            raise Unavailable("no answer from the runtime", subject=pod.full_name)
        self.killed.append((pod.uid, end))

    def metric(self, name: str) -> dict[tuple[str, ...], float]:
        return self.registry.metrics[name].values


async def test_a_critical_pod_preempts_others():
    situation = Situation([make_pod("big", "1500m"), make_pod("small", "400m"), make_pod("best-effort")])
    verdict = await situation.admission.admit(make_pod("critical", "1", static=True))
    assert [uid for uid, _ in situation.killed] == ["big"] == list(verdict.preemption.victims)
    end = situation.killed[0][1]
    assert (end.reason, end.message, end.grace_period_seconds, end.condition_reason) == (
        "Preempting",
        "Preempted in order to admit critical pod",
        None,
        "TerminationByKubelet",
    )
    events = [(event.pod_uid, event.type, event.reason) for event in situation.recorder]
    assert events == [("big", "Warning", "Preempting")]
    assert situation.metric("kubelet_preemptions") == {("cpu",): 1}
    assert situation.admission.admitted.used["cpu"] == 1400
    assert situation.admission.admitted.pods.keys() == {"small", "best-effort", "critical"}
    situation.admission.admitted.validate()


async def test_an_ordinary_pod_is_rejected():
    situation = Situation([make_pod("big", "1500m")])
    with pytest.raises(AdmissionRejected) as rejection:
        await situation.admission.admit(make_pod("late", "1", priority=1000))
    assert rejection.value.reason == "OutOfcpu"
    assert rejection.value.message == (
        "Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000"
    )
    assert not situation.killed


async def test_another_failed_check_ends_preemption():
    pod = make_pod("critical", "1", static=True)
    pod.spec.node_name = "elsewhere"
    situation = Situation([make_pod("big", "1500m")])
    with pytest.raises(AdmissionRejected) as rejection:
        await situation.admission.admit(pod)
    assert rejection.value.reason == "NodeName"
    assert not situation.killed


async def test_not_enough_is_an_unexpected_admission_error():
    situation = Situation([make_pod("big", "1500m", static=True), make_pod("small", "200m")])
    with pytest.raises(AdmissionRejected) as rejection:
        await situation.admission.admit(make_pod("critical", "1", static=True))
    assert rejection.value.reason == "UnexpectedAdmissionError"
    assert rejection.value.message.endswith(
        "error finding a set of pods to preempt: "
        "no set of running pods found to reclaim resources: [(res: cpu, q: 500), ]"
    )


async def test_a_node_that_stops_waits_for_no_victim():
    situation = Situation([make_pod("victim", cpu="2")])
    given_up = []

    async def never(pod: Pod, _end: PodEnd) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.append(pod.uid)

    situation.admission._kills = PodKills(never)
    verdict = situation.admission.reserve(make_pod("critical", cpu="1", static=True))
    waiting = asyncio.create_task(situation.admission.end_victims(verdict))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not given_up
    await situation.admission.stop()
    assert given_up == ["victim"]


async def test_a_failed_kill_does_not_keep_the_pod_out():
    pods = [make_pod("a", "1"), make_pod("b", "1")]
    situation = Situation(pods, cannot_kill=("b",))
    await situation.admission.admit(make_pod("critical", "2", static=True))
    assert [uid for uid, _ in situation.killed] == ["a"]
    assert situation.metric("kubelet_preemptions") == {("cpu",): 1}
    assert situation.admission.admitted.pods.keys() == {"b", "critical"}
    situation.admission.admitted.validate()


async def test_pods_are_admitted_one_at_a_time():
    situation = Situation([make_pod("a", "1"), make_pod("b", "1")])
    wanted = [make_pod(f"critical-{i}", "1", static=True) for i in range(2)]
    await asyncio.gather(*(situation.admission.admit(pod) for pod in wanted))
    assert sorted(uid for uid, _ in situation.killed) == ["a", "b"]
    assert situation.admission.admitted.used["cpu"] == 2000


async def test_policies_that_respect_the_annotation():
    pods = [make_pod("guarded", "1", protected=True), make_pod("x", "500m"), make_pod("y", "500m")]
    kubelet, minimal = Situation(pods), Situation(pods, policy="minimal")
    for situation in (kubelet, minimal):
        await situation.admission.admit(make_pod("critical", "1", static=True))
    assert [uid for uid, _ in kubelet.killed] == ["guarded"]
    assert sorted(uid for uid, _ in minimal.killed) == ["x", "y"]


async def test_nonsense_is_rejected_and_changes_nothing():
    situation = Situation([make_pod("a", "1")])
    for pod, words in ((make_pod("bad", "-1"), "negative"), (make_pod("a", "1"), "already on the node")):
        with pytest.raises(AdmissionRejected, match=words):
            await situation.admission.admit(pod)
    assert situation.admission.admitted.pods.keys() == {"a"}
    situation.admission.admitted.validate()
    with pytest.raises(InvalidInput, match=r"preemption\.policy"):
        Situation([], policy="best")


async def test_dry_run_and_describe():
    situation = Situation([make_pod("big", "1500m")])
    text = (
        '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","annotations":'
        '{"kubernetes.io/config.source":"file"}},"spec":{"containers":[{"name":"c","resources":'
        '{"requests":{"cpu":"1"}}}]}}'
    )
    answer = await situation.admission.act("dry-run", {"pod": text})
    assert answer["admit"]
    assert answer["preemption"]["victims"] == ["big"]
    assert situation.admission.describe()["used"] == {"cpu": 1500}
    with pytest.raises(InvalidInput, match="unknown action"):
        await situation.admission.act("explode", {})
    with pytest.raises(InvalidInput, match="expected the pod"):
        await situation.admission.act("dry-run", {})


async def test_the_node_may_change():
    situation = Situation([make_pod("a", "1")])
    with pytest.raises(AdmissionRejected):
        await situation.admission.admit(make_pod("b", "2"))
    situation.admission.set_node(make_node(cpu="4"))
    await situation.admission.admit(make_pod("b", "2"))
    situation.admission.remove("a")
    situation.admission.remove("a")
    assert situation.admission.admitted.used["cpu"] == 2000


async def test_a_victim_that_does_not_end_delays_others_only_for_a_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("engine.api.lifecycle.LEAST_KILL_SECONDS", 0.01)
    victim = make_pod("big", "1500m")
    victim.spec.termination_grace_period_seconds = 0
    situation = Situation([victim])
    ends = asyncio.Event()

    async def kill(pod: Pod, end: PodEnd) -> None:
        await ends.wait()

    monkeypatch.setattr(situation.admission, "_kills", PodKills(kill))
    await situation.admission.admit(make_pod("critical", "1", static=True))
    assert "big could not be preempted: it did not terminate in time" in caplog.text
    assert situation.admission.admitted.pods.keys() == {"big", "critical"}
    assert situation.metric("kubelet_preemptions") == {}
    ends.set()


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "stays after all"])
async def test_a_pod_preempted_while_waiting_does_not_start(ended: bool):
    waiting = make_pod("waiting", "1500m")
    situation = Situation([make_pod("old", "1500m")], cannot_kill=() if ended else ("waiting",))
    admission = situation.admission
    admission.terminating("old")
    admission.reserve(waiting)
    start = asyncio.create_task(admission.wait_for_resources(waiting))
    verdict = admission.reserve(make_pod("critical", "1", static=True))
    assert verdict.victims == ("waiting",)
    admission.remove("old")
    await asyncio.sleep(0.01)
    assert not start.done(), "it leaves, whatever is free"
    await admission.end_victims(verdict)
    if ended:
        await asyncio.sleep(0.01)
        assert not start.done()
        start.cancel()
    else:
        async with asyncio.timeout(PATIENCE):
            await start


async def test_a_waiting_pod_names_the_others_and_is_rejected_after_a_limit():
    old = make_pod("old", "1500m")
    old.spec.termination_grace_period_seconds = 0
    situation = Situation([old], patience=0.05)
    admission, late = situation.admission, make_pod("late", "1")
    told: list[tuple[str, str]] = []

    async def tell(reason: str, message: str) -> None:
        told.append((reason, message))

    admission.terminating("old")
    admission.reserve(late)
    with pytest.raises(AdmissionRejected) as rejection:
        await admission.wait_for_resources(late, tell)
    assert told == [("WaitingForResources", "terminating pods still hold what this pod needs: default/old")]
    assert rejection.value.reason == "OutOfcpu"
    assert rejection.value.message == (
        "Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000; "
        "terminating pods did not release it in time"
    )
    assert "late" not in admission.admitted
    admission.admitted.validate()


async def test_a_pod_that_waits_for_a_port_is_refused_for_the_port():
    spec = {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}
    old, late = (
        convert({"metadata": {"name": n, "namespace": "default", "uid": n}, "spec": spec}, Pod, n)
        for n in ("old", "late")
    )
    old.spec.termination_grace_period_seconds = 0
    admission = Situation([old], patience=0.05).admission
    admission.terminating("old")
    admission.reserve(late)
    with pytest.raises(AdmissionRejected) as rejection:
        await admission.wait_for_resources(late)
    assert rejection.value.reason == "NodePorts"
