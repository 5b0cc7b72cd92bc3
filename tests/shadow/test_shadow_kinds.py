"""Each kind of decision agrees with a kubelet that follows the rules, and names one that does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from engine.api.config import KubeletConfiguration
from engine.api.pod import Pod
from engine.cri.records import CREATED
from engine.shadow.kinds.admission import PERHAPS, UNSEEN, AdmissionComparer
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.eviction import EvictionComparer
from engine.shadow.kinds.observation import STARTED, MeasuredNode, MeasuredPod
from engine.shadow.kinds.restarts import RestartComparer, delay_in_message
from engine.shadow.kinds.status import compare_status
from tests.shadow.observations import node, observed, pod, ran, record, requesting


def by_kind(findings: list[Finding]) -> dict[str, tuple[str, str]]:
    return {f"{f.kind} {f.subject}": f[2:4] for f in findings if isinstance(f, Comparison)}


def reasons(findings: list[Finding]) -> list[str]:
    return [f.why for f in findings if isinstance(f, NotJudged)]


# Admission


def refused(name: str, reason: str, spec: dict[str, Any], *, order: int = 0) -> Pod:
    return pod(name, spec, order=order, phase="Failed", reason=reason, message="Pod was rejected")


def test_pods_of_the_first_observation_are_judged_in_the_order_of_their_starts() -> None:
    pods = [
        pod("late", requesting(cpu="1500m"), order=2),
        pod("early", requesting(cpu="1500m"), order=1),
    ]
    found = by_kind(list(AdmissionComparer().compare(observed(pods))))
    assert found["admission default/early"] == ("admitted", "admitted")
    assert found["admission default/late"] == ("OutOfcpu", "admitted")


def test_a_refusal_agrees_by_its_reason() -> None:
    comparer = AdmissionComparer()
    first = pod("first", requesting(cpu="1500m"))
    list(comparer.compare(observed([first])))
    second = [refused("second", "OutOfcpu", requesting(cpu="1"), order=1)]
    found = by_kind(list(comparer.compare(observed([first, *second]))))
    assert found["admission default/second"] == ("OutOfcpu", "OutOfcpu")


def test_a_refusal_that_only_pods_explain_that_have_gone_agrees() -> None:
    comparer = AdmissionComparer()
    list(comparer.compare(observed([pod("first", requesting(cpu="1500m"))])))
    late = refused("second", "OutOfcpu", requesting(cpu="1"), order=1)
    found = by_kind(list(comparer.compare(observed([late]))))
    assert found["admission default/second"] == ("OutOfcpu", "OutOfcpu")
    alone = by_kind(list(AdmissionComparer().compare(observed([late]))))
    assert alone["admission default/second"] == ("admitted", "OutOfcpu")


def test_the_victims_of_a_critical_pod_are_compared() -> None:
    comparer = AdmissionComparer()
    small, large = pod("small", requesting(cpu="500m")), pod("large", requesting(cpu="1500m"))
    list(comparer.compare(observed([small, large])))
    critical = {**requesting(cpu="1"), "priority": 2_000_000_000}
    ended = pod("large", requesting(cpu="1500m"), phase="Failed", reason="Preempting")
    found = by_kind(list(comparer.compare(observed([small, ended, pod("system", critical, order=3)]))))
    assert found["preemption default/system"] == ("default/large", "default/large")


def test_a_pod_that_the_kubelet_has_not_decided_about_waits_and_holds_nothing() -> None:
    comparer = AdmissionComparer()
    list(comparer.compare(observed([])))
    waits = pod("waits", requesting(cpu="1500m"), phase="Pending", startTime=None)
    other = pod("other", requesting(cpu="1500m"), order=1)
    found = by_kind(list(comparer.compare(observed([waits, other]))))
    assert found == {"admission default/other": ("admitted", "admitted")}
    late = refused("waits", "OutOfcpu", requesting(cpu="1500m"), order=2)
    found = by_kind(list(comparer.compare(observed([late, other]))))
    assert found["admission default/waits"] == ("OutOfcpu", "OutOfcpu")


def test_a_pod_that_came_and_went_between_two_observations_explains_a_refusal() -> None:
    comparer = AdmissionComparer()
    waits = pod("waits", requesting(cpu="1500m"), phase="Pending", startTime=None)
    list(comparer.compare(observed([waits])))
    late = refused("late", "OutOfcpu", requesting(cpu="1"), order=2)
    (found,) = comparer.compare(observed([late]))
    assert isinstance(found, NotJudged)
    assert found.why == UNSEEN
    # Without such a pod, it is a difference.
    other = refused("other", "OutOfcpu", requesting(cpu="1"), order=3)
    without = by_kind(list(comparer.compare(observed([other]))))
    assert without["admission default/other"] == ("admitted", "OutOfcpu")


def test_a_pod_that_a_kubelet_refuses_after_its_restart_is_judged_again() -> None:
    comparer = AdmissionComparer()
    first = pod("first", requesting(cpu="1500m"))
    list(comparer.compare(observed([first])))
    second = pod("second", requesting(cpu="1"), order=1, phase="Pending")
    found = list(comparer.compare(observed([first, second])))
    (one,) = [each for each in found if isinstance(each, Comparison) and not each.agrees]
    assert (one.ours, one.settle) == ("OutOfcpu", 60)
    now = by_kind(
        list(comparer.compare(observed([first, refused("second", "OutOfcpu", requesting(cpu="1"))])))
    )
    assert now["admission default/second"] == ("OutOfcpu", "OutOfcpu")


def test_the_reason_of_a_preemption_says_what_each_victim_frees() -> None:
    comparer = AdmissionComparer()
    small = pod("small", requesting(cpu="1500m"))
    list(comparer.compare(observed([small])))
    critical = {**requesting(cpu="1"), "priority": 2_000_000_000}
    found = list(comparer.compare(observed([small, pod("system", critical, order=3)])))
    (one,) = [each for each in found if isinstance(each, Comparison) and each.kind == "preemption"]
    assert one.our_reason == "default/small (Burstable) frees 500 of cpu"


def test_another_victim_than_the_rules_is_a_difference() -> None:
    comparer = AdmissionComparer()
    small, large = pod("small", requesting(cpu="500m")), pod("large", requesting(cpu="1500m"))
    list(comparer.compare(observed([small, large])))
    critical = {**requesting(cpu="500m"), "priority": 2_000_000_000}
    ended = pod("large", requesting(cpu="1500m"), phase="Failed", reason="Preempting")
    found = by_kind(list(comparer.compare(observed([small, ended, pod("system", critical, order=3)]))))
    assert found["preemption default/system"] == ("default/small", "default/large")


def test_a_status_is_not_judged_while_the_runtime_starts_a_container() -> None:
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    status = {"name": "c", "ready": False, "restartCount": 0, "image": "i", "imageID": "", "state": waiting}
    one = pod("p", containerStatuses=[status])
    starting = replace(ran(0), state=CREATED, started_at=0.0)
    found = list(compare_status(one, observed([one], [record(one, starting)])))
    assert [(type(each), each.subject) for each in found] == [(NotJudged, "default/p")]
    assert len(list(compare_status(one, observed([one], [record(one, ran(0))])))) == 2


def test_labels_that_are_not_known_are_not_judged() -> None:
    picky = refused("picky", "NodeAffinity", {"nodeSelector": {"disk": "ssd"}})
    assert reasons(list(AdmissionComparer().compare(observed([picky])))) == [
        "the node's labels and taints are not known"
    ]
    found = by_kind(list(AdmissionComparer().compare(observed([picky], node_known=True))))
    assert found["admission default/picky"] == ("NodeAffinity", "NodeAffinity")


# Restarts


def container_status(state: dict[str, Any], count: int = 0, **fields: Any) -> dict[str, Any]:
    status = {"name": "c", "ready": False, "restartCount": count, "image": "i", "imageID": "", "state": state}
    return {"containerStatuses": [status | fields]}


def waiting(delay: str) -> dict[str, Any]:
    text = f"back-off {delay} restarting failed container=c pod=p_default(uid)"
    return {"waiting": {"reason": "CrashLoopBackOff", "message": text}}


TERMINATED = {"terminated": {"exitCode": 1, "reason": "Error"}}


@pytest.mark.parametrize(
    ("policy", "code", "state", "expected"),
    [
        ("Always", 0, waiting("10s"), ("restarts", "restarts")),
        ("OnFailure", 1, waiting("10s"), ("restarts", "restarts")),
        ("Never", 1, TERMINATED, ("stays ended", "stays ended")),
        ("OnFailure", 0, waiting("10s"), ("stays ended", "restarts")),
        ("Always", 1, TERMINATED, ("restarts", "stays ended")),
    ],
)
def test_whether_a_container_restarts(
    policy: str, code: int, state: dict[str, Any], expected: tuple[str, str]
) -> None:
    one = pod("p", {"restartPolicy": policy}, **container_status(state, 1))
    found = by_kind(list(RestartComparer().compare(observed([one], [record(one, ran(1, code=code))]))))
    assert found["restart default/p/c attempt 1"] == expected


def test_a_container_that_ran_again_was_restarted() -> None:
    one = pod("p", {"restartPolicy": "Never"}, **container_status({"running": {}}, 1))
    held = record(one, ran(1, at=20), ran(0, code=1, at=1))
    found = by_kind(list(RestartComparer().compare(observed([one], [held]))))
    assert found["restart default/p/c attempt 0"] == ("stays ended", "restarts")


def test_delays_grow_as_restarts_are_seen() -> None:
    comparer = RestartComparer()
    ends = [ran(0, code=1, at=0), ran(1, code=1, at=10), ran(2, code=1, at=40)]
    for attempt, delay in ((0, ""), (1, "10s"), (2, "20s")):
        one = pod("p", **container_status(waiting(delay) if delay else TERMINATED, attempt))
        newest, *before = ends[attempt::-1]
        found = by_kind(list(comparer.compare(observed([one], [record(one, newest, *before[:1])]))))
    assert found["back-off default/p/c attempt 2"] == ("20 s", "20 s")
    wrong = pod("p", **container_status(waiting("5m0s"), 2))
    found = by_kind(list(comparer.compare(observed([wrong], [record(wrong, ends[2], ends[1])]))))
    assert found["back-off default/p/c attempt 2"] == ("20 s", "300 s")


def test_another_image_begins_with_the_initial_delay() -> None:
    comparer = RestartComparer()
    ends = [ran(0, code=1, at=0), ran(1, code=1, at=10), ran(2, code=1, at=40)]
    ends.append(replace(ran(3, code=1, at=60), hash="of another image"))
    for attempt, delay in enumerate(("10s", "10s", "20s", "10s")):
        one = pod("p", **container_status(waiting(delay) if attempt else TERMINATED, attempt))
        newest, *before = ends[attempt::-1]
        found = by_kind(list(comparer.compare(observed([one], [record(one, newest, *before[:1])]))))
    assert found["back-off default/p/c attempt 3"] == ("10 s", "10 s")


def test_delays_before_the_first_observation_are_taken_from_the_kubelet() -> None:
    comparer = RestartComparer()
    one = pod("p", **container_status(waiting("40s"), 3))
    found = list(comparer.compare(observed([one], [record(one, ran(3, code=1, at=100))])))
    assert reasons(found) == ["earlier restarts were not seen"]
    later = pod("p", **container_status(waiting("1m20s"), 4))
    held = record(later, ran(4, code=1, at=150), ran(3, code=1, at=100))
    found = list(comparer.compare(observed([later], [held])))
    assert by_kind(found)["back-off default/p/c attempt 4"] == ("80 s", "80 s")


def test_the_delay_of_a_container_is_kept_beside_one_whose_name_is_its_beginning() -> None:
    comparer = RestartComparer()
    containers = [{"name": name, "image": "i"} for name in ("c", "c2")]
    ended = ran(3, code=1, at=100, name="c2")
    (of_other,) = container_status(waiting("40s"), 3, name="c2")["containerStatuses"]
    for state in ({"running": {}}, waiting("10s")):
        (of_c,) = container_status(state, 1)["containerStatuses"]
        one = pod("p", {"containers": containers}, containerStatuses=[of_c, of_other])
        newest = ran(1, code=None if "running" in state else 1, at=110)
        found = by_kind(list(comparer.compare(observed([one], [record(one, newest, ended)]))))
    assert found["back-off default/p/c2 attempt 3"] == ("40 s", "40 s")


@pytest.mark.parametrize(
    ("pauses", "probe", "expected"),
    [
        ((0.1, 13.0, 28.0), None, [("0 s", "0 s"), ("10 s", "10 s"), ("20 s", "20 s")]),
        ((0.1, 3.0, 28.0), None, [("0 s", "0 s"), ("10 s", "3 s"), ("20 s", "20 s")]),
        ((0.1, 11.0, 200.0), None, [("0 s", "0 s"), ("10 s", "10 s"), ("20 s", "200 s")]),
        # A kubelet that ends a container for a probe starts the next one at once.
        ((0.1, 0.3, 0.3), {"exec": {"command": ["true"]}}, [("0 s", "0 s"), None, None]),
    ],
)
def test_the_time_between_an_end_and_a_start_is_compared_with_the_delay(
    pauses: Sequence[float], probe: Any, expected: Sequence[Any]
) -> None:
    comparer, held = RestartComparer(), [ran(0, code=1, at=100)]
    containers = [{"name": "c", "image": "i", "livenessProbe": probe}]
    found: list[Any] = []
    for attempt, pause in enumerate((None, *pauses)):
        if pause is not None:
            began = held[0].finished_at + pause
            held = [ran(attempt, code=1, at=began), *held[:1]]
        one = pod("p", {"containers": containers}, **container_status(TERMINATED, attempt))
        judged = by_kind(list(comparer.compare(observed([one], [record(one, *held)]))))
        if attempt:
            found.append(judged.get(f"back-off default/p/c attempt {attempt - 1}"))
    assert found == expected


def test_another_container_in_place_of_one_that_never_started_is_no_restart() -> None:
    one = pod("p", {"restartPolicy": "Never"}, **container_status({"running": {}}, 1))
    failed = replace(ran(0, code=128, at=5), started_at=0.0)
    assert not list(RestartComparer().compare(observed([one], [record(one, ran(1, at=20), failed)])))
    ended = ran(0, code=128, at=5)
    found = by_kind(list(RestartComparer().compare(observed([one], [record(one, ran(1, at=20), ended)]))))
    assert found["restart default/p/c attempt 0"] == ("stays ended", "restarts")


def test_a_container_that_was_never_started_leaves_the_delay_unknown() -> None:
    comparer, first = RestartComparer(), ran(0, code=1, at=100)
    made = replace(ran(1, at=111), state=CREATED, started_at=0.0)
    second = ran(2, at=120)
    third = [ran(3, at=141), ran(2, code=1, at=120)]
    for held in ([first], [made, first], [second, made], third):
        one = pod("p", **container_status(TERMINATED, held[0].attempt))
        found = by_kind(list(comparer.compare(observed([one], [record(one, *held)]))))
    assert "back-off default/p/c attempt 2" not in found


def test_a_kubelet_that_was_away_starts_a_container_late() -> None:
    def judged(began: float) -> tuple[str, str]:
        comparer = RestartComparer()
        for held in ([ran(0, code=1, at=100)], [ran(1, at=400), ran(0, code=1, at=100)]):
            one = pod("p", **container_status(TERMINATED, held[0].attempt))
            seen = dataclasses.replace(observed([one], [record(one, *held)]), series={STARTED: began})
            found = by_kind(list(comparer.compare(seen)))
        return found["back-off default/p/c attempt 0"]

    assert judged(began=1.0) == ("0 s", "290 s")
    assert judged(began=380.0) == ("0 s", "0 s")


def test_a_kubelet_that_starts_has_forgotten_the_delays() -> None:
    comparer = RestartComparer()

    def judged(delay: str, count: int, started: float) -> list[Finding]:
        one = pod("p", **container_status(waiting(delay), count))
        held = record(one, ran(count, code=1, at=50.0 * count), ran(count - 1, code=1, at=50.0 * (count - 1)))
        seen = observed([one], [held])
        return list(comparer.compare(dataclasses.replace(seen, series={STARTED: started})))

    judged("1m20s", 4, 1.0)
    assert by_kind(judged("2m40s", 5, 1.0))["back-off default/p/c attempt 5"] == ("160 s", "160 s")
    assert reasons(judged("10s", 6, 2.0)) == ["earlier restarts were not seen"]
    assert by_kind(judged("20s", 7, 2.0))["back-off default/p/c attempt 7"] == ("20 s", "20 s")


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("back-off 10s restarting failed container=c pod=p", 10),
        ("back-off 2m40s restarting failed container=c pod=p", 160),
        ("back-off 5m0s restarting failed container=c pod=p", 300),
        ("Back-off pulling image", None),
        ("", None),
    ],
)
def test_delays_in_messages(message: str, seconds: float | None) -> None:
    assert delay_in_message(message) == seconds


# Status


def test_a_status_that_follows_from_the_runtime_agrees() -> None:
    conditions = [
        {"type": name, "status": "True"}
        for name in ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    ]
    shown = container_status({"running": {}}, ready=True, started=True, containerID="containerd://c-0")
    one = pod("p", **shown, conditions=conditions)
    found = list(compare_status(one, observed([one], [record(one, ran(0))])))
    assert len(found) == 2
    assert all(f.agrees for f in found)


def test_a_pod_that_is_shown_ready_while_its_container_has_ended_differs() -> None:
    shown = container_status({"running": {}}, ready=True, started=True, containerID="containerd://c-0")
    one = pod("p", {"restartPolicy": "Never"}, **shown)
    found = by_kind(list(compare_status(one, observed([one], [record(one, ran(0, code=2))]))))
    assert found["status default/p"][0].startswith("Failed")
    assert found["status default/p/c"][0] == "terminated with 2 (Error), not ready, restarts 0"


# Preemption

CRITICAL = 2_000_001_000


def test_pods_that_end_by_themselves_explain_the_victims_of_a_critical_pod() -> None:
    comparer = AdmissionComparer()
    small = [pod(name, requesting(cpu="200m"), order=1) for name in ("a", "b")]
    large = pod("large", {**requesting(cpu="1600m"), "priority": CRITICAL}, order=2)
    list(comparer.compare(observed([*small, large])))
    # The kubelet ended both small ones while the large one was still there; then a user deleted that.
    ended = [
        pod(one.metadata.name, requesting(cpu="200m"), order=1, phase="Failed", reason="Preempting")
        for one in small
    ]
    critical = pod("critical", {**requesting(cpu="400m"), "priority": CRITICAL}, order=3)
    last = pod("last", requesting(cpu="1600m"), order=4)
    found = by_kind(list(comparer.compare(observed([*ended, critical, last]))))
    assert found["preemption default/critical"] == ("default/a, default/b",) * 2
    # What the kubelet freed is free for the pods after it.
    assert found["admission default/last"] == ("admitted", "admitted")


def test_of_equal_pods_any_may_end_for_a_critical_pod() -> None:
    comparer = AdmissionComparer()
    names = ("a", "b", "c", "d")
    pods = {name: pod(name, requesting(cpu="500m"), order=1) for name in names}
    list(comparer.compare(observed(pods.values())))
    # The kubelet ended b and d; d, whose containers exit with 0, has no reason, as c, which ended by itself.
    pods["b"] = pod("b", requesting(cpu="500m"), order=1, phase="Failed", reason="Preempting")
    for name in ("c", "d"):
        pods[name] = pod(name, requesting(cpu="500m"), order=1, phase="Succeeded")
    critical = pod("critical", {**requesting(cpu="1"), "priority": CRITICAL}, order=3)
    found = list(comparer.compare(observed([*pods.values(), critical])))
    assert by_kind(found)["preemption default/critical"] == ("default/b", "default/b")
    (one,) = [each for each in found if isinstance(each, Comparison) and each.kind == "preemption"]
    # Both victims are named, though one is gone, and none that comes later.
    assert one.our_reason.count(" (Burstable) frees 500 of cpu") == 2
    assert "default/critical" not in one.our_reason


def test_victims_without_a_reason_leave_it_open_whether_there_was_a_preemption() -> None:
    comparer = AdmissionComparer()
    list(comparer.compare(observed([pod("a", requesting(cpu="2"), order=1)])))
    ended = pod("a", requesting(cpu="2"), order=1, phase="Succeeded")
    critical = pod("critical", {**requesting(cpu="1"), "priority": CRITICAL}, order=3)
    found = list(comparer.compare(observed([ended, critical])))
    assert [each.why for each in found if isinstance(each, NotJudged)] == [PERHAPS]
    assert by_kind(found)["admission default/critical"] == ("admitted", "admitted")


def test_a_victim_that_no_rule_chooses_is_a_difference() -> None:
    comparer = AdmissionComparer()
    pods = {name: pod(name, requesting(cpu="900m"), order=1) for name in ("a", "b")}
    list(comparer.compare(observed(pods.values())))
    for name in pods:
        pods[name] = pod(name, requesting(cpu="900m"), phase="Failed", reason="Preempting")
    critical = pod("critical", {**requesting(cpu="400m"), "priority": CRITICAL}, order=3)
    found = by_kind(list(comparer.compare(observed([*pods.values(), critical]))))
    ours, theirs = found["preemption default/critical"]
    assert theirs == "default/a, default/b"
    assert ours in ("default/a", "default/b")


# Eviction

LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. "
USED = f"{LOW}Container c was using 50, request is 10, has larger consumption of memory. "


def evicted_after(use: dict[str, int | None], gone: str, message: str = USED) -> list[Finding]:
    """Return what is found about an eviction among pods that each request 10 bytes of memory; None: no
    statistics.
    """
    comparer = EvictionComparer()
    pods = {name: pod(name, requesting(memory="10")) for name in use}
    known = {f"uid-{name}": MeasuredPod(memory=one) for name, one in use.items() if one is not None}
    measured = MeasuredNode(pods=known)
    list(comparer.compare(observed(pods.values(), use=measured)))
    ended = pod(
        gone,
        requesting(memory="10"),
        phase="Failed",
        reason="Evicted",
        message=message,
        **container_status(TERMINATED),
    )
    after = [ended if name == gone else one for name, one in pods.items()]
    return list(comparer.compare(observed(after, use=measured)))


def test_the_pod_that_the_ranking_puts_first_agrees() -> None:
    found = by_kind(evicted_after({"little": 5, "much": 500, "some": 50}, "much"))
    assert found["eviction default/much"] == ("default/much", "default/much")


def test_another_pod_than_the_first_is_a_difference() -> None:
    found = by_kind(evicted_after({"little": 5, "much": 500, "some": 50}, "some"))
    assert found["eviction default/some"] == ("default/much", "default/some")


def test_a_pod_without_statistics_at_the_observation_may_have_had_some_later() -> None:
    found = by_kind(evicted_after({"starts": None, "much": 500, "some": 50}, "much"))
    assert found["eviction default/much"] == ("default/much", "default/much")
    found = by_kind(evicted_after({"starts": None, "much": 500, "some": 50}, "some"))
    assert found["eviction default/some"] == ("default/starts", "default/some")


def test_a_pod_of_which_the_kubelet_had_no_statistics_is_not_judged() -> None:
    found = evicted_after({"much": 500, "some": 50}, "some", LOW)
    assert "the kubelet had no statistics of it, which puts it first" in reasons(found)
    assert "eviction default/some" not in by_kind(found)


def test_conditions_follow_from_thresholds_and_statistics() -> None:
    config = KubeletConfiguration(eviction_hard={"memory.available": "100"})
    short = MeasuredNode(memory_available=50, memory_working_set=950)
    found = by_kind(
        list(EvictionComparer().compare(observed([], use=short, config=config, node_known=True, of=node())))
    )
    assert found["pressure node"] == ("MemoryPressure", "none")
