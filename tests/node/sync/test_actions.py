"""What a pod worker does next, from the spec and the runtime's record alone."""

from __future__ import annotations

from engine.api.defaults import apply_defaults
from engine.api.pod import Container, Pod, PodSpec
from engine.cri.records import (
    CREATED,
    EXITED,
    RUNNING,
    UNKNOWN,
    ContainerRecord,
    PodRecord,
    SandboxRecord,
)
from engine.node.spec.cri_config import container_hash
from engine.node.sync.actions import ContainerHealth, compute_pod_actions

HEALTHY = ContainerHealth()


def pod(*names: str, init: tuple[Container, ...] = (), policy: str = "Always") -> Pod:
    made = Pod(
        spec=PodSpec(
            containers=[Container(name=name, image="i") for name in names],
            init_containers=list(init) or None,
            restart_policy=policy,
        )
    )
    apply_defaults(made)
    return made


def init(name: str) -> Container:
    return Container(name=name, image="i")


def sidecar(name: str) -> Container:
    return Container(name=name, image="i", restart_policy="Always")


def record(*containers: ContainerRecord, ready: bool = True, attempt: int = 0) -> PodRecord:
    sandbox = SandboxRecord("s", ready, attempt, 1.0, ("10.0.0.1",))
    return PodRecord("u", "p", "default", [sandbox], list(containers))


def container(name: str, state: int, code: int = 0, *, sandbox: str = "s", hash: str = "") -> ContainerRecord:
    return ContainerRecord(
        f"id-{name}", name, sandbox, state, 0, 1.0, exit_code=code, finished_at=2.0, hash=hash
    )


def decide(spec: Pod, found: PodRecord, health: ContainerHealth = HEALTHY):
    return compute_pod_actions(spec, found, health=lambda _: health, spec_hash=container_hash)


def starts(spec: Pod, found: PodRecord, health: ContainerHealth = HEALTHY) -> list[str]:
    return [c.name for c in decide(spec, found, health).start]


def test_a_new_pod_gets_a_sandbox_and_all_its_containers():
    actions = decide(pod("a", "b"), PodRecord("u", "", ""))
    assert (actions.create_sandbox, actions.kill_pod, actions.attempt) == (True, False, 0)
    assert [c.name for c in actions.start] == ["a", "b"]


def test_init_containers_run_one_after_another():
    spec = pod("a", init=(init("i"), init("j")))
    assert starts(spec, PodRecord("u", "", "")) == ["i"]
    assert starts(spec, record()) == ["i"]
    assert decide(spec, record(container("i", RUNNING))).nothing
    assert starts(spec, record(container("i", EXITED))) == ["j"]
    assert starts(spec, record(container("j", EXITED), container("i", EXITED))) == ["a"]


def test_an_init_container_that_was_collected_is_not_run_again():
    spec = pod("a", init=(init("i"), init("j")))
    assert starts(spec, record(container("j", EXITED))) == ["a"]
    assert decide(spec, record(container("a", RUNNING))).nothing


def test_a_failed_init_container_is_retried_or_ends_the_pod():
    failed = record(container("i", EXITED, 1))
    assert starts(pod("a", init=(init("i"),)), failed) == ["i"]
    assert starts(pod("a", init=(init("i"),), policy="OnFailure"), failed) == ["i"]
    ended = decide(pod("a", init=(init("i"),), policy="Never"), failed)
    assert ended.finished
    assert ended.kill_pod
    assert not ended.start


def test_a_sidecar_holds_the_next_until_it_has_started():
    spec = pod("a", init=(sidecar("s"), init("i")))
    running = container("s", RUNNING)
    assert starts(spec, record()) == ["s"]
    assert decide(spec, record(running), ContainerHealth(started=False)).nothing
    assert starts(spec, record(running)) == ["i"]
    assert starts(spec, record(running, container("i", EXITED))) == ["a"]


def test_an_ended_sidecar_restarts_while_containers_run():
    spec = pod("a", init=(sidecar("s"),))
    assert starts(spec, record(container("a", RUNNING), container("s", EXITED))) == ["s"]


def test_a_crashing_sidecar_does_not_hold_up_what_comes_after_a_later_init_container():
    spec = pod("a", init=(sidecar("s"), init("i"), init("j")))
    crashed = container("s", EXITED, 1)
    assert starts(spec, record(crashed)) == ["s"]
    assert starts(spec, record(crashed, container("i", RUNNING))) == ["s"]
    assert starts(spec, record(crashed, container("i", EXITED))) == ["s", "j"]
    assert starts(spec, record(crashed, container("j", EXITED))) == ["s", "a"]
    again = record(container("s", RUNNING), container("i", EXITED))
    assert starts(spec, again, ContainerHealth(started=False)) == ["j"]


def test_restart_policies():
    ended, failed = record(container("a", EXITED)), record(container("a", EXITED, 3))
    assert starts(pod("a"), ended) == ["a"]
    assert starts(pod("a", policy="OnFailure"), failed) == ["a"]
    assert decide(pod("a", policy="OnFailure"), ended).finished
    assert decide(pod("a", policy="Never"), failed).finished


def test_a_pod_ends_only_when_every_container_has():
    spec = pod("a", "b", policy="Never")
    assert decide(spec, record(container("a", EXITED), container("b", RUNNING))).nothing
    assert decide(spec, record(container("a", EXITED), container("b", EXITED))).finished


def test_a_dead_sandbox_is_replaced_with_everything_in_it():
    actions = decide(pod("a"), record(container("a", EXITED), ready=False, attempt=2))
    assert (actions.kill_pod, actions.create_sandbox, actions.attempt) == (True, True, 3)
    assert [c.name for c in actions.start] == ["a"]


def test_a_dead_sandbox_of_a_pod_that_never_restarts_ends_it():
    actions = decide(pod("a", policy="Never"), record(container("a", RUNNING), ready=False))
    assert actions.finished
    assert not actions.create_sandbox


def test_a_changed_image_an_unknown_state_and_a_failed_probe_restart_the_container():
    spec = pod("a")
    for found, health, reason in (
        (container("a", RUNNING, hash="other"), HEALTHY, "ContainerSpecChanged"),
        (container("a", UNKNOWN), HEALTHY, "ContainerUnknown"),
        (container("a", RUNNING), ContainerHealth(failed="liveness"), "Unhealthy"),
    ):
        actions = decide(spec, record(found), health)
        assert [k.reason for k in actions.kill] == [reason]
        assert [c.name for c in actions.start] == ["a"]


def test_a_failed_probe_does_not_restart_what_never_restarts():
    actions = decide(
        pod("a", policy="Never"), record(container("a", RUNNING)), ContainerHealth(failed="liveness")
    )
    assert [k.liveness for k in actions.kill] == ["liveness"]
    assert not actions.start


def test_the_event_of_a_kill_says_whether_the_container_will_be_restarted():
    failed, changed = ContainerHealth(failed="startup"), container("a", RUNNING, hash="other")
    for policy, found, health, text in (
        ("Always", container("a", RUNNING), failed, "Container a failed startup probe, will be restarted"),
        ("Never", container("a", RUNNING), failed, "Container a failed startup probe"),
        ("Never", changed, HEALTHY, "Container a definition changed, will be restarted"),
        (
            "Always",
            container("a", UNKNOWN),
            HEALTHY,
            'Container is in "unknown" state, try killing it before restart',
        ),
    ):
        assert [k.event for k in decide(pod("a", policy=policy), record(found), health).kill] == [text]
    spec, running = pod("a", init=(sidecar("s"),)), container("s", RUNNING)
    assert [k.event for k in decide(spec, record(running), failed).kill] == [
        "Init container s failed startup probe"
    ]


def test_a_container_that_was_created_and_not_started_is_started():
    assert starts(pod("a"), record(container("a", CREATED))) == ["a"]


def test_a_matching_container_keeps_running():
    spec = pod("a")
    assert decide(spec, record(container("a", RUNNING, hash=container_hash(spec.spec.containers[0])))).nothing
