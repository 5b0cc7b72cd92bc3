"""Pod statuses in the kubelet v1.36's fields and words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api.duration import RetryDelays
from engine.api.errors import Refused
from engine.api.pod import Pod
from engine.api.struct import to_builtins, to_json
from engine.cri.client import RuntimeClient
from engine.cri.records import (
    CREATED,
    EXITED,
    RUNNING,
    ContainerRecord,
    PodRecord,
    SandboxRecord,
    container_record,
)
from engine.node.sync.status import StatusInputs, pod_status
from engine.runtime.hollow import HollowRuntime
from engine.wire import cri_v1_pb2 as cri
from tests.node.spec.test_cri_config import pod_of
from tests.node_rig import Rig, container
from tests.waiting import eventually


def record(
    *containers: ContainerRecord, ready: bool = True, ips: tuple[str, ...] = ("10.0.0.1",)
) -> PodRecord:
    return PodRecord("u", "p", "d", [SandboxRecord("s", ready, 0, 1.0, ips)], list(containers))


def copy(name: str, state: int, code: int = 0) -> ContainerRecord:
    return ContainerRecord(name, name, "s", state, 0, 1.0, started_at=2.0, exit_code=code)


def shown(pod: Pod, found: PodRecord, **settings: Any) -> dict[str, Any]:
    """Set the pod's status from its record in the runtime, and return it as JSON."""
    inputs = {"now": 9.0, "runtime_name": "r", "host_ips": ("192.0.2.1",), **settings}
    pod.status = pod_status(
        pod, found, StatusInputs(**{"ready": lambda _: True, "started": lambda _: True, **inputs})
    )
    return to_builtins(pod.status)


def condition(status: dict[str, Any], kind: str) -> tuple[str, str, str]:
    found = next(c for c in status["conditions"] if c["type"] == kind)
    return found["status"], found.get("reason", ""), found.get("message", "")


def test_containers_are_shown_by_name_and_init_containers_in_their_order():
    names = ["zz", "aa", "mm"]
    pod = pod_of(
        {
            "initContainers": [container(name, restartPolicy="Always") for name in ("side", "b")],
            "containers": [container(name) for name in names],
        }
    )
    status = shown(pod, record(*(copy(name, RUNNING) for name in ("side", "b", *names))))
    assert [one["name"] for one in status["containerStatuses"]] == ["aa", "mm", "zz"]
    assert [one["name"] for one in status["initContainerStatuses"]] == ["side", "b"]


def test_initialized_stays_when_a_sidecar_ends_after_the_start():
    sidecar = container("side", restartPolicy="Always")
    pod = pod_of({"initContainers": [sidecar], "containers": [container()]})
    assert condition(shown(pod, record()), "Initialized")[:2] == ("False", "ContainersNotInitialized")
    status = shown(pod, record(copy("side", RUNNING), copy("c", RUNNING)))
    assert condition(status, "Initialized")[0] == "True"
    status = shown(pod, record(copy("side", EXITED, 1), copy("c", RUNNING)))
    assert condition(status, "Initialized")[0] == "True"
    assert status["phase"] == "Running"
    status = shown(pod, record(copy("side", EXITED, 1)))
    assert condition(status, "Initialized")[0] == "True"


def test_an_unset_readiness_gate_keeps_the_pod_unready():
    pod = pod_of({"readinessGates": [{"conditionType": "x.io/a"}, {"conditionType": "x.io/b"}]})
    status = shown(pod, record(copy("c", RUNNING)))
    assert condition(status, "ContainersReady")[0] == "True"
    assert condition(status, "Ready") == (
        "False",
        "ReadinessGatesNotReady",
        'corresponding condition of pod readiness gate "x.io/a" does not exist., '
        'corresponding condition of pod readiness gate "x.io/b" does not exist.',
    )


def test_the_address_of_a_pod_outlives_its_sandbox():
    pod = pod_of({})
    shown(pod, record(copy("c", RUNNING)))
    assert shown(pod, record(copy("c", EXITED), ready=False, ips=()))["podIP"] == "10.0.0.1"
    assert shown(pod, record(copy("c", RUNNING), ips=("10.0.0.2",)))["podIPs"] == [{"ip": "10.0.0.2"}]


def test_fields_that_are_always_written():
    pod = pod_of({})
    status = shown(pod, record(copy("c", RUNNING)))
    assert all(c["lastProbeTime"] is None for c in status["conditions"])
    assert b'"lastProbeTime":null' in to_json(pod.status)
    assert status["containerStatuses"][0]["resources"] == {}
    assert status["resources"] == {}
    assert "allocatedResources" not in status
    assert msgspec.json.decode(to_json(pod.status), type=type(pod.status), strict=False).phase == "Running"


@pytest.mark.parametrize(
    ("signal", "name"),
    [("RUNTIME_DEFAULT", None), ("SIGUSR1", "SIGUSR1"), ("SIGRTMINPLUS1", "SIGRTMIN+1"), (999, None)],
)
def test_a_stop_signal_has_the_apis_name(signal: str | int, name: str | None):
    number = cri.Signal.Value(signal) if isinstance(signal, str) else signal
    found = record(msgspec.structs.replace(copy("c", RUNNING), stop_signal=number))
    assert "stopSignal" not in shown(pod_of({}), found)["containerStatuses"][0]
    status = shown(pod_of({}), found, stop_signals=True)
    assert status["containerStatuses"][0].get("stopSignal") == name


def test_mounts_of_image_volumes_name_their_image():
    mounts = [{"name": "tools", "mountPath": "opt"}, {"name": "data", "mountPath": "/data"}]
    volumes = [{"name": "tools", "image": {"reference": "tools:1"}}, {"name": "data", "emptyDir": {}}]
    pod = pod_of({"containers": [container(volumeMounts=mounts)], "volumes": volumes})
    answer = cri.ContainerStatus(
        id="c",
        metadata=cri.ContainerMetadata(name="c"),
        state=cri.CONTAINER_RUNNING,
        mounts=[
            cri.Mount(container_path="/opt", image=cri.ImageSpec(image="sha256:1")),
            cri.Mount(container_path="/data", host_path="/somewhere"),
        ],
    )
    found = record(container_record(answer, "s"))
    plain = shown(pod, found)["containerStatuses"][0]["volumeMounts"]
    assert plain == mounts
    tools, data = shown(pod, found, image_volumes=True)["containerStatuses"][0]["volumeMounts"]
    assert tools == {**mounts[0], "volumeStatus": {"image": {"imageRef": "sha256:1"}}}
    assert data == mounts[1]


def test_resources_are_those_that_were_given():
    sized = {"requests": {"cpu": "250m", "memory": "8Mi"}, "limits": {"memory": "16Mi"}}
    pod = pod_of({"containers": [container(resources=sized), container("free")]})
    pending = shown(pod, record(copy("c", CREATED)))
    assert pending["resources"] == sized
    status = shown(pod, record(copy("c", RUNNING), copy("free", RUNNING)))
    assert status["phase"] == "Running"
    assert status["containerStatuses"][0]["allocatedResources"] == sized["requests"]
    assert status["containerStatuses"][0]["resources"] == sized
    assert status["allocatedResources"] == sized["requests"]
    assert status["resources"] == sized


@pytest.mark.parametrize("supported", [True, False])
def test_mounts_are_shown_and_whether_all_beneath_is_read_only(supported: bool):
    mounts = [
        {"name": "v", "mountPath": "/a"},
        {"name": "v", "mountPath": "/b", "readOnly": True},
        {"name": "v", "mountPath": "/c", "readOnly": True, "recursiveReadOnly": "IfPossible"},
    ]
    pod = pod_of({"volumes": [{"name": "v", "emptyDir": {}}], "containers": [container(volumeMounts=mounts)]})
    for found in (record(), record(copy("c", RUNNING))):
        status = shown(pod, found, recursive_read_only=supported)
        assert status["containerStatuses"][0]["volumeMounts"] == [
            {"name": "v", "mountPath": "/a"},
            {"name": "v", "mountPath": "/b", "readOnly": True, "recursiveReadOnly": "Disabled"},
            {
                "name": "v",
                "mountPath": "/c",
                "readOnly": True,
                "recursiveReadOnly": "Enabled" if supported else "Disabled",
            },
        ]


def test_containers_wait_for_the_pod_to_initialize_init_containers_too():
    pod = pod_of({"initContainers": [container("i")]})
    status = shown(pod, record())
    for kind in ("initContainerStatuses", "containerStatuses"):
        assert status[kind][0]["state"]["waiting"] == {"reason": "PodInitializing"}


async def test_a_failed_pull_is_reported_and_then_its_backoff(
    rig: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("engine.node.sync.sync.RETRIES", RetryDelays(0.1, 10.0))

    async def refuse(self: object, *args: object, **kwargs: object) -> str:
        raise Refused("no such host")

    monkeypatch.setattr(RuntimeClient, "pull_image", refuse)
    await rig.start()
    rig.write("lost", {"containers": [container(image="nowhere/x:1", imagePullPolicy="Always")]})

    def waiting() -> Any:
        pod = rig.pod("lost")
        return pod and pod.status.container_statuses and pod.status.container_statuses[0].state.waiting

    seen = []

    def backs_off() -> bool:
        found = waiting()
        if found and (not seen or seen[-1] != found.reason):
            seen.append(found.reason)
        return bool(found) and found.reason == "ImagePullBackOff"

    await eventually(backs_off)
    assert "ErrImagePull" in seen
    assert waiting().message == 'Back-off pulling image "nowhere/x:1": ErrImagePull: no such host'
    said = [(e.type, e.reason, e.message) for e in rig.node.recorder if e.container == "c"]
    assert said[:4] == [
        ("Normal", "Pulling", 'Pulling image "nowhere/x:1"'),
        ("Warning", "Failed", 'Failed to pull image "nowhere/x:1": no such host'),
        ("Warning", "Failed", "Error: ErrImagePull"),
        ("Normal", "BackOff", 'Back-off pulling image "nowhere/x:1"'),
    ]


async def test_attempts_go_on_from_the_logs_where_the_runtime_has_lost_its_containers(
    rig: Rig, hollow: HollowRuntime
):
    await rig.start()
    path = rig.write("logged", {"containers": [container()]}, uid="u1")
    await eventually(lambda: rig.phase("logged") == "Running")
    await rig.node.stop()
    logs = Path(rig.config.pod_logs_dir) / "default_logged-n1_u1" / "c"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "3.log").touch()
    (logs / "2.log.20260101-000000.gz").touch()
    (logs / "x.log").touch()
    hollow.service.records.containers.clear()
    await rig.start()
    await eventually(lambda: rig.phase("logged") == "Running")
    assert path.exists()
    assert rig.pod("logged").status.container_statuses[0].restart_count == 4


async def test_a_present_image_is_reported(rig: Rig):
    await rig.start()
    rig.write("web", {"containers": [container()]})
    await eventually(lambda: rig.phase("web") == "Running")
    rig.write("more", {"containers": [container()]})
    await eventually(lambda: rig.phase("more") == "Running")
    text = 'Container image "busybox:1" already present on machine and can be accessed by the pod'
    assert text in [e.message for e in rig.node.recorder if e.reason == "Pulled" and "more" in e.pod]


async def test_the_user_is_shown_as_reported_by_the_runtime(rig: Rig):
    await rig.start()
    context = {"runAsUser": 5, "runAsGroup": 6}
    rig.write("user", {"containers": [container(securityContext=context)]})
    await eventually(lambda: rig.phase("user") == "Running")
    pod = rig.pod("user")
    assert pod is not None
    (status,) = to_builtins(pod.status)["containerStatuses"]
    assert status["user"] == {"linux": {"uid": 5, "gid": 6}}


async def test_a_node_without_local_storage_isolation_has_no_ephemeral_storage(
    rig: Rig, hollow: HollowRuntime
):
    rig.config.local_storage_capacity_isolation = False
    node = await rig.start()
    limit = {"resourceFieldRef": {"resource": "limits.ephemeral-storage"}}
    rig.write("told", {"containers": [container(env=[{"name": "E", "valueFrom": limit}])]})
    rig.write("asks", {"containers": [container(resources={"requests": {"ephemeral-storage": "1Mi"}})]})
    await eventually(lambda: (rig.phase("told"), rig.phase("asks")) == ("Running", "Failed"))
    pod = rig.pod("asks")
    assert pod is not None
    assert "(res: ephemeral-storage, q: 1048576)" in pod.status.message
    (made,) = hollow.service.records.containers.values()
    assert {v.key: v.value for v in made.config.envs}["E"] == b"0"
    assert "ephemeral-storage" not in (node.running.description.current().status.capacity or {})


def test_the_termination_messages_of_a_pod_share_12_kib():
    names = ["a", "b", "c", "d", "e"]
    pod = pod_of({"restartPolicy": "Never", "containers": [container(name) for name in names]})
    found = record(*(copy(name, EXITED) for name in names))
    status = shown(pod, found, message=lambda _: "x" * 4096)
    messages = [one["state"]["terminated"]["message"] for one in status["containerStatuses"]]
    assert [len(message) for message in messages] == [12 * 1024 // 5] * 5
    status = shown(pod, found, message=lambda _: "é" * 2048)
    messages = [one["state"]["terminated"]["message"] for one in status["containerStatuses"]]
    assert messages == ["é" * 1228] * 5


def test_a_static_pod_tolerates_every_taint_for_any_time():
    everything = {"operator": "Exists", "effect": "NoExecute"}
    for_a_while = {**everything, "tolerationSeconds": 5}
    other = {"key": "k", **everything}
    assert to_builtins(pod_of({"tolerations": [for_a_while, other]}).spec.tolerations) == [everything, other]
    assert to_builtins(pod_of({"tolerations": [other]}).spec.tolerations) == [other, everything]
