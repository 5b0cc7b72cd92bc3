"""Restart rules of containers, and pods that begin anew in place."""

from __future__ import annotations

import msgspec
import pytest

from engine.api.pod import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    Pod,
    PodSpec,
)
from engine.cri.records import EXITED, RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.node.spec.cri_config import container_hash
from engine.node.sync.actions import ContainerHealth, compute_pod_actions, should_restart, to_reset
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container, recorded_graces
from tests.waiting import eventually

EXIT = "runtime.kubengine.dev/"


def rule(action: str, operator: str, *values: int) -> ContainerRestartRule:
    codes = ContainerRestartRuleOnExitCodes(operator=operator, values=list(values))
    return ContainerRestartRule(action=action, exit_codes=codes)


@pytest.mark.parametrize(
    ("pod_policy", "own", "rules", "code", "restarts"),
    [
        ("Never", None, [], 1, False),
        ("Never", "Always", [], 0, True),
        ("Never", "OnFailure", [], 0, False),
        ("Never", "OnFailure", [], 1, True),
        ("Always", "Never", [], 1, False),
        ("Never", "Never", [rule("Restart", "In", 42)], 42, True),
        ("Never", "Never", [rule("Restart", "In", 42)], 41, False),
        ("Never", "Never", [rule("Restart", "NotIn", 42)], 41, True),
        ("Never", "Never", [rule("Restart", "NotIn")], 0, True),
        ("Never", "Never", [rule("RestartAllContainers", "In", 7)], 7, True),
        ("Never", "Never", [rule("Later", "In", 7), rule("Restart", "In", 7)], 7, False),
        ("Always", None, [rule("Restart", "In", 7)], 7, True),
    ],
)
def test_a_rule_decides_then_the_containers_policy_then_the_pods(pod_policy, own, rules, code, restarts):
    chosen = Container(name="c", restart_policy=own, restart_policy_rules=rules)
    assert should_restart(Pod(spec=PodSpec(restart_policy=pod_policy)), chosen, code) is restarts


def record(*containers: ContainerRecord) -> PodRecord:
    return PodRecord("u", "p", "d", [SandboxRecord("s", True, 0, 1.0, ("10.0.0.1",))], list(containers))


def copy(name: str, state: int, code: int = 0, attempt: int = 0) -> ContainerRecord:
    return ContainerRecord(f"{name}{attempt}", name, "s", state, attempt, 1.0, exit_code=code)


def test_all_containers_are_removed_and_the_triggering_ones_last():
    everything = [rule("RestartAllContainers", "In", 7)]
    pod = Pod(
        spec=PodSpec(
            restart_policy="Never",
            init_containers=[Container(name="i")],
            containers=[
                Container(name="a", restart_policy="Never", restart_policy_rules=everything),
                Container(name="b"),
            ],
        )
    )
    found = record(copy("a", EXITED, 7, 1), copy("b", RUNNING), copy("i", EXITED), copy("a", EXITED, 3))
    assert [c.id for c in to_reset(pod, found)] == ["a0", "b0", "i0", "a1"]
    actions = compute_pod_actions(pod, found, health=lambda _: ContainerHealth(), spec_hash=container_hash)
    assert (len(actions.reset), actions.start, actions.finished) == (4, [], False)
    half = record(copy("a", EXITED, 7, 1))
    assert compute_pod_actions(pod, half, health=lambda _: ContainerHealth(), spec_hash=container_hash).reset
    done = compute_pod_actions(pod, record(), health=lambda _: ContainerHealth(), spec_hash=container_hash)
    assert (done.reset, [c.name for c in done.start]) == ([], ["i"])


async def test_a_container_that_its_rule_restarts_runs_again_in_a_pod_that_never_restarts(
    rig: Rig, hollow: HollowRuntime
):
    await rig.start()
    rules = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
    rig.write(
        "retry",
        {
            "restartPolicy": "Never",
            "containers": [container(restartPolicy="Never", restartPolicyRules=rules), container("other")],
        },
        annotations={f"{EXIT}exit-after.c": "10ms", f"{EXIT}exit-code.c": "42"},
    )
    await eventually(
        lambda: (
            (pod := rig.pod("retry"))
            and pod.status.container_statuses
            and pod.status.container_statuses[0].restart_count == 1
        )
    )
    assert rig.phase("retry") == "Running"


async def test_a_pod_starts_again_in_its_sandbox(rig: Rig, hollow: HollowRuntime):
    graces = recorded_graces(hollow)
    await rig.start()
    rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [7]}}]
    rig.write(
        "anew",
        {
            "restartPolicy": "Never",
            "initContainers": [container("i")],
            "containers": [container("a", restartPolicy="Never", restartPolicyRules=rules), container("b")],
        },
        annotations={
            f"{EXIT}exit-after.i": "10ms",
            f"{EXIT}exit-after.a": "300ms",
            f"{EXIT}exit-code.a": "7",
        },
    )

    def restarted() -> bool:
        pod = rig.pod("anew")
        statuses = [*(pod.status.init_container_statuses or []), *(pod.status.container_statuses or [])]
        return all(s.restart_count >= 1 and s.container_id for s in statuses)

    await eventually(lambda: rig.phase("anew") == "Running")
    await eventually(restarted)
    assert graces[:1] == [2], "a kubelet kills no container without a warning"
    assert hollow.counts()["RunPodSandbox"]["calls"] == 1
    status = rig.pod("anew").status
    last = status.container_statuses[1].last_state.terminated
    assert (last.exit_code, last.reason) == (137, "RestartingAllContainers")
    assert msgspec.to_builtins(last)["finishedAt"] is None, (
        "a kubelet writes a time that is not known as null"
    )
    conditions = {c.type: c.status for c in status.conditions}
    assert "AllContainersRestarting" in conditions
    assert conditions["Initialized"] == "True"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"restartPolicy": "Sometimes"}, ".restartPolicy: "),
        ({"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In"}}]}, "must specify"),
        ({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Go"}]}, ".action: "),
        ({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}, "exitCodes: must be"),
    ],
)
async def test_rules_that_say_nothing_are_refused(rig: Rig, fields, said):
    await rig.start()
    rig.write("bad", {"containers": [container(**fields)]})
    await eventually(lambda: any(said in e.message for e in rig.node.recorder))
    assert rig.pod("bad") is None
