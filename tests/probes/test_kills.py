"""How many containers liveness probes may end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from engine.api.decisions import Decisions
from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import ProbesSection
from engine.api.meta import OwnerReference
from engine.probes.kills import KillBudget, owner_of
from tests.probes.probed_pods import OK, Rig, pod_with, replying, serving
from tests.waiting import eventually

Bounded = Callable[..., Awaitable[Rig]]
REFUSED = {"tcpSocket": {"port": 1}, "failureThreshold": 2}


@pytest.fixture
async def bounded() -> AsyncIterator[Bounded]:
    started = []

    async def start(**bounds: int) -> Rig:
        section = ProbesSection(liveness_kills_within=Duration(3600), **bounds)
        started.append(Rig(section, decisions=Decisions(time.time)))
        await started[-1].manager.start()
        return started[-1]

    yield start
    for rig in started:
        await rig.manager.stop()


def test_a_budget_refills_with_time():
    budget = KillBudget(ProbesSection(liveness_kills_per_owner=1, liveness_kills_per_node=2))
    assert budget.take("a", 0.0) == ""
    assert budget.take("a", 1.0) == "1 of a within 600 s"
    assert budget.take("b", 2.0) == ""
    assert budget.take("c", 599.0) == "2 on the node within 600 s"
    assert budget.take("a", 600.0) == "", "a refused restart does not use up the limit"
    assert budget.take("c", 601.0) == "2 on the node within 600 s"


def test_probes_delayed_by_the_node_kill_no_container():
    budget = KillBudget(ProbesSection(liveness_kills_per_node=1))
    assert budget.take("a", 0.0, lateness=1.26) == "the node ran the probe 1.3 s late"
    assert budget.take("a", 0.0, lateness=0.01) == ""


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (ProbesSection(liveness_kills_per_owner=-1), "at least 0"),
        (ProbesSection(liveness_kills_per_node=-1), "at least 0"),
        (ProbesSection(liveness_kills_within=Duration(0)), "longer than 0 s"),
    ],
)
def test_invalid_bounds_are_named(section: ProbesSection, words: str):
    with pytest.raises(InvalidInput, match=rf"probes\.livenessKills.*{words}"):
        KillBudget(section)


def test_the_owner_is_the_controller():
    pod = pod_with("u1")
    assert owner_of(pod) == "default/pod-u1"
    pod.metadata.owner_references = [
        OwnerReference(kind="Other", name="x"),
        OwnerReference(kind="ReplicaSet", name="web", controller=True),
    ]
    assert owner_of(pod) == "default/ReplicaSet/web"


async def test_one_pod_of_an_owner_is_stopped_and_the_other_continues(bounded: Bounded):
    rig = await bounded(liveness_kills_per_owner=1)
    for uid in ("u1", "u2"):
        pod = pod_with(uid, liveness=REFUSED)
        pod.metadata.owner_references = [OwnerReference(kind="ReplicaSet", name="web", controller=True)]
        rig.run(pod)
    rig.run(pod_with("u3", liveness=REFUSED))
    await eventually(lambda: rig.manager.failed("u3", "app", "c1") == "liveness")
    await eventually(lambda: len(rig.messages("LivenessKillWithheld")) >= 2)
    failed = {uid for uid in ("u1", "u2") if rig.manager.failed(uid, "app", "c1") == "liveness"}
    (spared,) = {"u1", "u2"} - failed
    assert [r.result for r in rig.results if r.pod_uid == spared] == ["success"], "no probe has failed"
    assert rig.registry.metrics["kubengine_liveness_kills_withheld_total"].values[()] >= 2
    decision = rig.manager._decisions.after(0)[-1]
    assert (decision.kind, decision.outcome, decision.uid, decision.container) == (
        "restart",
        "withheld",
        spared,
        "app",
    )
    assert decision.reason == "1 of default/ReplicaSet/web within 3600 s"


async def test_one_that_was_spared_and_recovers_is_as_before(bounded: Bounded):
    rig = await bounded(liveness_kills_per_node=1)
    rig.run(pod_with("u1", liveness=REFUSED))
    await eventually(lambda: rig.manager.failed("u1", "app", "c1") == "liveness")
    rig.manager.remove_pod("u1")
    answer = [b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"]

    async def handler(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer[0])
        await writer.drain()

    async with serving(handler) as port:
        rig.run(pod_with("u2", liveness={"httpGet": {"port": port}, "failureThreshold": 2}))
        await eventually(lambda: rig.messages("LivenessKillWithheld"))
        answer[0] = OK
        await eventually(lambda: rig.probe("liveness")["last"] == "success")
        assert rig.manager.failed("u2", "app", "c1") == ""
        assert rig.probe("liveness")["result"] == "success"


async def test_without_bounds_all_are_ended(bounded: Bounded):
    rig = await bounded()
    for number in range(5):
        rig.run(pod_with(f"u{number}", liveness=REFUSED))
    await eventually(
        lambda: all(rig.manager.failed(f"u{number}", "app", "c1") == "liveness" for number in range(5))
    )
    assert rig.messages("LivenessKillWithheld") == []


async def test_a_container_that_ended_by_itself_takes_nothing_of_the_budget(bounded: Bounded):
    rig = await bounded(liveness_kills_per_node=1)
    async with serving(replying(OK)) as port:
        rig.run(pod_with("u1", liveness={"httpGet": {"port": port}}))
        await eventually(lambda: rig.probe("liveness")["last"] == "success")
        rig.manager.update_container("u1", "app", container_id="c1", state="terminated")
        await eventually(lambda: rig.seen("liveness", "c1")[-1] == "failure")
    rig.manager.remove_pod("u1")
    rig.run(pod_with("u2", liveness=REFUSED))
    await eventually(lambda: rig.manager.failed("u2", "app", "c1") == "liveness")
    assert rig.messages("LivenessKillWithheld") == []


async def test_a_container_killed_for_a_probe_has_an_explanation(bounded: Bounded):
    rig = await bounded()
    rig.run(pod_with("u1", liveness={**REFUSED, "failureThreshold": 2}))
    await eventually(lambda: rig.manager.failed("u1", "app", "c1") == "liveness")
    (decision,) = [each for each in rig.manager._decisions.after(0) if each.kind == "restart"]
    assert (decision.outcome, decision.uid, decision.container) == ("unhealthy", "u1", "app")
    assert decision.reason.startswith("liveness probe failed: ")
    assert (decision.inputs["probe"], decision.inputs["failures"]) == ("liveness", 2)
    assert decision.inputs["lateness"] >= 0 <= decision.inputs["late"]
