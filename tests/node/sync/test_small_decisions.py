"""Tests small decisions of pod workers: back-off, environment, static pods, status phases."""

from __future__ import annotations

import pytest

from engine.api.config import CrashLoopBackOffConfig, KubeletConfiguration
from engine.api.documents import parse_pods
from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.api.lifecycle import PodEnd
from engine.api.pod import Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, ResourceFieldSelector
from engine.api.qos import is_critical, is_static
from engine.api.quantity import Quantity
from engine.containers.backoff import Backoff, restart_delays
from engine.cri.records import EXITED, RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.node.pod.life import Waiting
from engine.node.sources.static_pods import static_pod
from engine.node.spec.environment import (
    EnvSources,
    container_environment,
    expand,
    field_value,
    resource_value,
)
from engine.node.sync.pod_metrics import counted_reason
from engine.node.sync.status import StatusInputs, pod_status

MANIFEST = b"""
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers: [{name: c, image: "busybox:1", resources: {requests: {cpu: 100m}}}]
"""


def load(text: bytes = MANIFEST, origin: str = "/m/web.yaml", node: str = "Node1") -> Pod:
    return static_pod(parse_pods(text, origin)[0][0], node_name=node, origin=origin, seen_at=1.0)


@pytest.mark.parametrize(
    ("gates", "period", "delays"),
    [
        ({}, None, (10.0, 300.0)),
        ({}, 30, (10.0, 30.0)),
        ({}, 2, (2.0, 2.0)),
        ({"ReduceDefaultCrashLoopBackOffDecay": True}, None, (1.0, 300.0)),
        ({"ReduceDefaultCrashLoopBackOffDecay": True}, 30, (1.0, 30.0)),
        (
            {"ReduceDefaultCrashLoopBackOffDecay": True, "KubeletCrashLoopBackOffMax": False},
            None,
            (1.0, 60.0),
        ),
    ],
)
def test_feature_gates_and_the_configuration_set_the_delays_of_restarts(
    gates: dict[str, bool], period: int | None, delays: tuple[float, float]
):
    settings = CrashLoopBackOffConfig(Duration(period)) if period is not None else None
    config = KubeletConfiguration(feature_gates=gates, crash_loop_back_off=settings)
    assert restart_delays(config) == delays


def test_backoff_doubles_to_its_limit_and_forgets():
    backoff, now = Backoff(10, 300), 1000.0
    assert backoff.remaining("k", now, now) == 0
    delays = []
    for _ in range(7):
        backoff.attempt("k", now, now)
        delays.append(backoff.remaining("k", now, now))
        now += delays[-1]
    assert delays == [10, 20, 40, 80, 160, 300, 300]
    assert backoff.remaining("k", now + 601, now + 601) == 0
    backoff.attempt("k", now + 601, now + 601)
    assert backoff.delay("k") == 10
    backoff.forget("k")
    assert backoff.delay("k") == 0


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)-$(A)", "1-1"),
        ("$(B) $$(A) $$", "$(B) $(A) $"),
        ("$A $(", "$A $("),
        ("100%", "100%"),
    ],
)
def test_references_expand(text, expanded):
    assert expand(text, {"A": "1"}) == expanded


def test_environment_from_values_fields_and_resources():
    pod = load()
    container = Container(
        name="c",
        env=[
            EnvVar(name="A", value="x"),
            EnvVar(name="B", value="$(A)y $(LATER)"),
            EnvVar(
                name="IP", value_from=EnvVarSource(field_ref=ObjectFieldSelector(field_path="status.podIP"))
            ),
            EnvVar(
                name="CPU",
                value_from=EnvVarSource(
                    resource_field_ref=ResourceFieldSelector(
                        resource="limits.cpu", divisor=Quantity.parse("1m")
                    )
                ),
            ),
        ],
    )
    given = EnvSources(("10.1.1.1",), ("192.0.2.1", "2001:db8::1"), {"cpu": Quantity.parse("3")})
    assert container_environment(pod, container, given) == {
        "A": "x",
        "B": "xy $(LATER)",
        "IP": "10.1.1.1",
        "CPU": "3000",
    }


def test_downward_fields():
    pod = load()
    hosts = ("192.0.2.1", "2001:db8::1")
    assert field_value(pod, "status.hostIP", host_ips=hosts) == "192.0.2.1"
    assert field_value(pod, "status.hostIPs", host_ips=hosts) == "192.0.2.1,2001:db8::1"
    assert field_value(pod, "metadata.labels['app']") == "web"
    assert field_value(pod, "metadata.labels") == 'app="web"'
    assert field_value(pod, "spec.nodeName") == "Node1"
    with pytest.raises(InvalidInput, match=r"status\.phase"):
        field_value(pod, "status.phase")
    request = ResourceFieldSelector(resource="requests.cpu")
    assert resource_value(pod, request, pod.spec.containers[0], {}) == "1"


def limit_seen(resource: str, pod_limits: bytes = b"{}", own: bytes = b"{}") -> str:
    pod = load(
        MANIFEST.replace(b"requests: {cpu: 100m}", b"limits: " + own).replace(
            b"spec:", b"spec:\n  resources: {limits: " + pod_limits + b"}"
        )
    )
    node = {
        "cpu": Quantity.parse("8"),
        "memory": Quantity.parse("1Gi"),
        "ephemeral-storage": Quantity.parse("10"),
        "hugepages-2Mi": Quantity.parse("4Mi"),
    }
    selector = ResourceFieldSelector(resource=f"limits.{resource}")
    return resource_value(pod, selector, pod.spec.containers[0], node)


def test_a_container_without_a_limit_sees_its_pods_and_then_the_nodes():
    assert limit_seen("cpu") == "8"
    assert limit_seen("cpu", b"{cpu: 1250m}") == "2"
    assert limit_seen("memory", b"{cpu: 1250m, memory: 64Mi}") == "67108864"
    assert limit_seen("memory", b"{cpu: 1250m}") == "1073741824"
    assert limit_seen("memory", b"{memory: 64Mi}", b"{memory: 32Mi}") == "33554432"
    assert limit_seen("memory", own=b"{memory: 0}") == "1073741824"
    assert limit_seen("ephemeral-storage") == "10"
    assert limit_seen("hugepages-2Mi") == "0"


def test_a_static_pod_is_named_for_its_node_and_marked():
    pod = load()
    assert pod.metadata.name == "web-node1"
    assert pod.metadata.namespace == "default"
    assert pod.annotations["kubernetes.io/config.source"] == "file"
    assert pod.annotations["kubernetes.io/config.hash"] == pod.uid
    assert pod.spec.containers[0].image_pull_policy == "IfNotPresent"
    assert pod.spec.tolerations[-1].effect == "NoExecute"


def test_a_manifest_may_stand_for_a_pod_of_an_api_server():
    pod = load(MANIFEST.replace(b"labels:", b"annotations: {kubernetes.io/config.source: api}, labels:"))
    assert pod.metadata.name == "web"
    assert not is_static(pod)
    assert not is_critical(pod)
    assert not pod.spec.tolerations


def test_a_static_pods_uid_follows_its_content_but_not_its_amounts():
    uid = load().uid
    assert load().uid == uid
    assert load(MANIFEST.replace(b"100m", b"200m")).uid == uid
    for other in (
        load(MANIFEST.replace(b"busybox:1", b"busybox:2")),
        load(MANIFEST.replace(b"requests: {cpu: 100m}", b"limits: {cpu: 1, memory: 1Mi}")),
        load(origin="/m/other.yaml"),
        load(node="node2"),
    ):
        assert other.uid != uid
    given = MANIFEST.replace(b"name: web,", b"name: web, uid: u-1,")
    assert load(given).uid == "u-1"


def record(*containers: ContainerRecord) -> PodRecord:
    return PodRecord("u", "p", "d", [SandboxRecord("s", True, 0, 1.0, ("10.0.0.9",))], list(containers))


def container(state: int, code: int = 0, attempt: int = 0) -> ContainerRecord:
    return ContainerRecord(f"c{attempt}", "c", "s", state, attempt, 1.0 + attempt, 1.0, 2.0, code)


def status(pod: Pod, found: PodRecord, **changes):
    inputs = {
        "now": 5.0,
        "runtime_name": "containerd",
        "host_ips": ("192.0.2.1",),
        "ready": lambda c: c.running,
        "started": lambda _: True,
        **changes,
    }
    return pod_status(pod, found, StatusInputs(**inputs))


@pytest.mark.parametrize(
    ("policy", "found", "phase"),
    [
        ("Always", PodRecord("u", "", ""), "Pending"),
        ("Always", record(container(RUNNING)), "Running"),
        ("Always", record(container(EXITED)), "Running"),
        ("Never", record(container(EXITED)), "Succeeded"),
        ("Never", record(container(EXITED, 1)), "Failed"),
        ("OnFailure", record(container(EXITED, 1)), "Running"),
        ("OnFailure", record(container(EXITED)), "Succeeded"),
    ],
)
def test_phases(policy, found, phase):
    pod = load()
    pod.spec.restart_policy = policy
    assert status(pod, found).phase == phase


def test_a_crash_loop_shows_both_states():
    waiting = {"c": Waiting("CrashLoopBackOff", "back-off 10s")}
    shown = status(load(), record(container(EXITED, 3, attempt=4)), waiting=waiting).container_statuses[0]
    assert shown.state.waiting.reason == "CrashLoopBackOff"
    assert shown.last_state.terminated.exit_code == 3
    assert (shown.restart_count, shown.ready, shown.container_id) == (4, False, "containerd://c4")


def test_conditions_keep_the_time_of_their_last_change():
    pod = load()
    pod.status = status(pod, record(container(RUNNING)), now=5.0)
    later = status(pod, record(container(RUNNING)), now=60.0)
    assert later == pod.status
    broken = status(pod, record(container(EXITED, 1)), now=60.0)
    ready = {c.type: c for c in broken.conditions}["Ready"]
    assert (ready.status, ready.reason, ready.last_transition_time.timestamp()) == (
        "False",
        "ContainersNotReady",
        60.0,
    )


def test_a_pod_that_the_node_ended_is_failed_whatever_its_containers_say():
    end = PodEnd("Evicted", "low on memory", condition_reason="R")
    ended = status(load(), record(container(RUNNING)), end=end)
    assert (ended.phase, ended.reason, ended.message) == ("Failed", "Evicted", "low on memory")
    assert {c.type for c in ended.conditions} >= {"DisruptionTarget", "Ready", "PodScheduled"}


def test_a_pod_that_the_node_stopped_has_succeeded_if_all_its_containers_ended_well():
    by_codes = PodEnd("Evicted", "low on memory", condition_reason="R", by_exit_codes=True)
    for end, policy, code, phase in (
        (by_codes, "Never", 0, "Succeeded"),
        (by_codes, "Never", 1, "Failed"),
        (by_codes, "Always", 0, "Failed"),  # a static pod's containers would have been started again
        (PodEnd("DeadlineExceeded", "too long"), "Never", 0, "Failed"),
    ):
        pod = load()
        pod.spec.restart_policy = policy
        ended = status(pod, record(container(EXITED, code)), end=end, terminated=True)
        assert (ended.phase, ended.reason) == (phase, end.reason if phase == "Failed" else "")
        assert ("DisruptionTarget" in {c.type for c in ended.conditions}) == bool(end.condition_reason)
        running = status(pod, record(container(RUNNING)), end=end)
        assert (running.phase, running.reason) == ("Failed", end.reason)


def test_a_pod_of_the_api_that_the_node_stopped_has_succeeded_whatever_its_policy():
    pod = load()
    pod.metadata.annotations["kubernetes.io/config.source"] = "api"
    end = PodEnd("Evicted", "low on memory", by_exit_codes=True)
    assert status(pod, record(container(EXITED, 0)), end=end, terminated=True).phase == "Succeeded"


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("OutOfcpu", "OutOfcpu"),
        ("OutOfexample.com/gpu", "OutOfExtendedResources"),
        ("OutOfhugepages-2Mi", "OutOfExtendedResources"),
        ("NodeShutdown", "NodeShutdown"),
        ("NodePorts", "Other"),
        ("", "Other"),
    ],
)
def test_rejections_are_counted_under_a_bounded_number_of_labels(reason: str, label: str):
    assert counted_reason(reason) == label
