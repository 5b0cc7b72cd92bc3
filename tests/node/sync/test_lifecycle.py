"""Pods from manifest to nothing, on the hollow runtime: order, restarts, ends, faults."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.api.duration import Duration, RetryDelays
from engine.api.errors import Refused
from engine.api.lifecycle import PodEnd
from engine.api.quantity import Quantity
from engine.containers.backoff import Backoff
from engine.cri.client import RuntimeClient
from engine.node import Node
from engine.runtime.hollow import HollowRuntime
from engine.wire import cri_v1_pb2 as cri
from tests.cluster_rig import PODS, Cluster, Joined
from tests.node_rig import Rig, container
from tests.waiting import PATIENCE, eventually

EXIT = "runtime.kubengine.dev/"


async def test_a_pod_runs_changes_and_ends(rig: Rig, hollow: HollowRuntime):
    await rig.start()
    path = rig.write("web", {"containers": [container()]})
    await eventually(lambda: rig.phase("web") == "Running")
    uid = rig.pod("web").uid
    rig.write("web", {"containers": [container(image="busybox:2")]})
    await eventually(lambda: rig.pod("web") and rig.pod("web").uid != uid)
    await eventually(lambda: rig.phase("web") == "Running")
    path.unlink()
    await eventually(lambda: not rig.node.pods())
    assert not hollow.service.records.sandboxes
    assert not list((rig.root / "pods").iterdir())


async def test_a_pod_at_rest_has_no_task_until_something_changes(rig: Rig):
    def tasks() -> list[str]:
        return [name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("pod ")]

    await rig.start()
    spec = {"containers": [container()], "restartPolicy": "Never"}
    path = rig.write("web", spec, annotations={f"{EXIT}exit-after": "2s"})
    await eventually(lambda: rig.phase("web") == "Running" and not tasks())
    await eventually(lambda: rig.phase("web") == "Succeeded" and not tasks())
    path.unlink()
    await eventually(lambda: not rig.node.pods() and not tasks())


async def test_init_containers_sidecars_and_containers_start_in_order(rig: Rig, hollow: HollowRuntime):
    await rig.start()
    rig.write(
        "ordered",
        {
            "initContainers": [container("one"), container("side", restartPolicy="Always"), container("two")],
            "containers": [container("main")],
        },
        annotations={f"{EXIT}exit-after.one": "50ms", f"{EXIT}exit-after.two": "50ms"},
    )
    await eventually(lambda: rig.phase("ordered") == "Running")
    started = [e.container for e in rig.node.recorder if e.reason == "Started"]
    assert started == ["one", "side", "two", "main"]


async def test_a_pod_of_another_namespace_runs_as_such(rig: Rig, hollow: HollowRuntime):
    await rig.start()
    rig.write("scheduler", {"containers": [container()]}, namespace="kube-system")
    await eventually(lambda: rig.phase("scheduler") == "Running")
    pod = rig.pod("scheduler")
    assert pod is not None
    assert pod.metadata.namespace == "kube-system"
    (sandbox,) = hollow.service.records.sandboxes.values()
    assert sandbox.config.metadata.namespace == "kube-system"
    logs = Path(rig.config.pod_logs_dir) / f"kube-system_scheduler-n1_{pod.uid}"
    assert sandbox.config.log_directory == str(logs)


async def test_a_crashing_container_backs_off(rig: Rig):
    await rig.start()
    annotations = {f"{EXIT}exit-after": "10ms", f"{EXIT}exit-code": "3"}
    rig.write("crash", {"containers": [container()]}, annotations=annotations)

    def crash_loop() -> bool:
        statuses = (rig.pod("crash") and rig.pod("crash").status.container_statuses) or []
        return any(s.state.waiting and s.state.waiting.reason == "CrashLoopBackOff" for s in statuses)

    await eventually(crash_loop)
    status = rig.pod("crash").status.container_statuses[0]
    assert status.restart_count == 1
    assert status.last_state.terminated.exit_code == 3
    assert "BackOff" in rig.reasons()


async def test_a_back_off_is_written_as_go_writes_durations(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.containers.backoff.Backoff", lambda *_: Backoff(first=80.0))
    await rig.start()
    rig.write("crash", {"containers": [container()]}, annotations={f"{EXIT}exit-after": "10ms"})

    def waiting() -> Any:
        pod = rig.pod("crash")
        statuses = (pod and pod.status.container_statuses) or []
        return statuses and statuses[0].state.waiting

    await eventually(lambda: waiting() and waiting().reason == "CrashLoopBackOff")
    whose = f"crash-n1_default({rig.pod('crash').uid})"
    assert waiting().message == f"back-off 1m20s restarting failed container=c pod={whose}"


async def test_a_new_image_ends_a_back_off(
    joined: Joined, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.containers.backoff.Backoff", lambda *_: Backoff(first=300.0))
    await joined.start()
    annotations = {f"{EXIT}exit-after": "10ms"}
    await cluster.run("p", containers=[container()], annotations=annotations)

    def waits(pod: Any) -> bool:
        (status,) = (pod and pod["status"].get("containerStatuses")) or [{}]
        waiting = status.get("state", {}).get("waiting", {})
        return status.get("restartCount", 0) >= restarts and waiting.get("reason") == "CrashLoopBackOff"

    restarts = 1
    found = await cluster.wait_for("p", waits)
    assert found is not None
    found["spec"]["containers"][0]["image"] = "busybox:2"
    cluster.server.update(f"{PODS}/p", found)
    restarts = 2
    await cluster.wait_for("p", waits)
    await cluster.delete("p")
    await cluster.gone("p")


async def test_a_restarted_container_is_created_with_the_original_sandbox_config(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    made, told = [], []
    run, create = RuntimeClient.run_pod_sandbox, RuntimeClient.create_container

    async def record_sandbox(self: RuntimeClient, config: cri.PodSandboxConfig, handler: str = "") -> str:
        made.append(config)
        return await run(self, config, handler)

    async def record_container(
        self: RuntimeClient, sandbox_id: str, config: cri.ContainerConfig, sandbox: cri.PodSandboxConfig
    ) -> str:
        told.append(sandbox)
        return await create(self, sandbox_id, config, sandbox)

    monkeypatch.setattr(RuntimeClient, "run_pod_sandbox", record_sandbox)
    monkeypatch.setattr(RuntimeClient, "create_container", record_container)
    await rig.start()
    rig.write("again", {"containers": [container()]}, annotations={f"{EXIT}exit-after": "300ms"})
    await eventually(lambda: len(told) > 1)
    assert told[:2] == made * 2


async def test_a_container_that_its_probe_ends_backs_off_one_restart_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    """As in the kubelet, a container that was just killed does not count yet when its successor starts."""
    monkeypatch.setattr("engine.containers.backoff.Backoff", lambda *_: Backoff(first=300.0))
    await rig.start()
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
    annotations = {f"{EXIT}exec-exit-code": "1"}
    rig.write("sick", {"containers": [container(livenessProbe=probe)]}, annotations=annotations)

    def waits() -> bool:
        statuses = (rig.pod("sick") and rig.pod("sick").status.container_statuses) or []
        return any(s.state.waiting and s.state.waiting.reason == "CrashLoopBackOff" for s in statuses)

    await eventually(waits)
    assert rig.pod("sick").status.container_statuses[0].restart_count == 2


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [("Never", "0", "Succeeded"), ("Never", "1", "Failed"), ("OnFailure", "0", "Succeeded")],
)
async def test_a_pod_that_ends_stays_ended(rig: Rig, hollow: HollowRuntime, policy, code, phase):
    await rig.start()
    annotations = {f"{EXIT}exit-after": "10ms", f"{EXIT}exit-code": code}
    rig.write("job", {"containers": [container()], "restartPolicy": policy}, annotations=annotations)
    await eventually(lambda: rig.phase("job") == phase)
    await rig.restart()
    await eventually(lambda: rig.phase("job") == phase)
    assert hollow.counts()["StartContainer"]["calls"] == 1


@pytest.mark.parametrize("moved", [False, True], ids=["deleted", "moved away"])
async def test_a_removed_and_restored_manifest_restarts_its_pod(rig: Rig, hollow: HollowRuntime, moved: bool):
    await rig.start()
    path = rig.write("web", {"containers": [container()]})
    await eventually(lambda: rig.phase("web") == "Running")
    uid = rig.pod("web").uid
    rig.write("web", {"containers": [container()]})
    rig.write("other", {"containers": [container()]})
    await eventually(lambda: rig.phase("other") == "Running")
    assert rig.pod("web").status.container_statuses[0].restart_count == 0, "replaced by the same"
    if moved:
        path.rename(rig.root / "web.yaml")
        (rig.root / "web.yaml").rename(path)
    else:
        text = path.read_text()
        path.unlink()
        path.write_text(text)

    def restarted() -> bool:
        pod = rig.pod("web")
        statuses = (pod.status.container_statuses or []) if pod is not None else []
        return bool(statuses) and statuses[0].state.running is not None and statuses[0].restart_count == 1

    await eventually(restarted)
    assert rig.pod("web").uid == uid
    assert rig.pod("web").status.container_statuses[0].last_state.terminated is None
    assert rig.pod("other").status.container_statuses[0].restart_count == 0


async def test_other_amounts_in_a_manifest_taken_away_and_there_again_are_a_resize(
    rig: Rig, hollow: HollowRuntime
):
    await rig.start()
    path = rig.write("web", {"containers": [container(resources={"requests": {"cpu": "100m"}})]})
    await eventually(lambda: rig.phase("web") == "Running")
    text = path.read_text().replace("100m", "200m")
    path.unlink()
    path.write_text(text)
    await eventually(lambda: rig.pod("web").spec.containers[0].requests["cpu"] == Quantity.parse("200m"))
    await eventually(lambda: rig.phase("web") == "Running")
    assert rig.pod("web").status.container_statuses[0].restart_count == 0


async def test_an_agent_that_restarts_finds_its_pods_running(rig: Rig, hollow: HollowRuntime):
    await rig.start()
    rig.write("stays", {"containers": [container()]})
    gone = rig.write("goes", {"containers": [container()]})
    await eventually(lambda: rig.phase("stays") == rig.phase("goes") == "Running")
    await rig.node.stop()
    gone.unlink()
    await rig.start()
    await eventually(lambda: rig.phase("stays") == "Running" and len(hollow.service.records.sandboxes) == 1)
    assert hollow.counts()["StartContainer"]["calls"] == 2


async def test_a_half_made_pod_is_finished(rig: Rig, hollow: HollowRuntime):
    """A container that was created by an agent that died before starting it."""
    await rig.start()
    rig.write("half", {"containers": [container()]}, annotations={f"{EXIT}start-error": "no"})
    await eventually(lambda: "Failed" in rig.reasons())
    await rig.node.stop()
    for sandbox in hollow.service.records.sandboxes.values():
        del sandbox.config.annotations[f"{EXIT}start-error"]
    await rig.start()
    await eventually(lambda: rig.phase("half") == "Running")


async def test_a_container_that_the_runtime_cannot_remove_is_reported_once_and_delays_no_other(
    rig: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    """containerd 1.6 may keep such a container, whose start the death of the agent cut off, until containerd
    restarts.
    """
    await rig.start()
    spec = {"containers": [container("stuck"), container("beside")]}
    rig.write("half", spec, annotations={f"{EXIT}start-error.stuck": "context canceled"})
    await eventually(lambda: {"Failed", "Started"} <= set(rig.reasons()))
    await rig.node.stop()
    for sandbox in hollow.service.records.sandboxes.values():
        del sandbox.config.annotations[f"{EXIT}start-error.stuck"]
    remove, tries = hollow.backend.remove_container, 0

    async def refuse(left: object) -> None:
        nonlocal tries
        tries += 1
        raise Refused("cannot delete running task: failed precondition")

    monkeypatch.setattr(hollow.backend, "remove_container", refuse)
    monkeypatch.setattr("engine.node.sync.sync.RETRIES", RetryDelays(0.1, 0.1))
    await rig.start()
    await eventually(lambda: tries >= 4)
    statuses = {s.name: s for s in rig.pod("half").status.container_statuses}
    waiting = statuses["stuck"].state.waiting
    assert waiting.reason == "CreateContainerError"
    assert "cannot delete running task" in waiting.message
    assert "restart the runtime" in waiting.message
    assert statuses["beside"].state.running
    assert [e.message for e in rig.node.recorder if e.reason in ("Failed", "FailedSync")] == [
        f"Error: {waiting.message}"
    ]
    rig.write("other", {"containers": [container()]})
    await eventually(lambda: rig.phase("other") == "Running")
    monkeypatch.setattr(hollow.backend, "remove_container", remove)
    await eventually(lambda: all(s.ready for s in rig.pod("half").status.container_statuses))
    assert [s.restart_count for s in rig.pod("half").status.container_statuses] == [0, 0]


async def test_a_bad_manifest_stops_nothing_else(rig: Rig):
    await rig.start()
    rig.write("good", {"containers": [container()]})
    await eventually(lambda: rig.phase("good") == "Running")
    (rig.manifests / "bad.yaml").write_text("apiVersion: v1\nkind: Pod\nspec: {containers: [")
    (rig.manifests / "typed.yaml").write_text("apiVersion: v1\nkind: Pod\nspec: {containers: 3}")
    rig.write("negative", {"containers": [container(resources={"requests": {"cpu": "-1"}})]})
    rig.write(
        "secret", {"containers": [container()], "volumes": [{"name": "s", "secret": {"secretName": "x"}}]}
    )
    (rig.manifests / "zz-twin.yaml").write_text((rig.manifests / "good.yaml").read_text())
    await eventually(lambda: rig.reasons().count("FailedManifest") == 5)
    said = [e.message for e in rig.node.recorder if e.reason == "FailedManifest"]
    assert any("bad.yaml: not valid YAML" in text for text in said)
    assert any("typed.yaml: spec.containers: Expected" in text for text in said)
    assert any("requests.cpu: expected 0 or more" in text for text in said)
    assert any("secret volume needs an API server" in text for text in said)
    assert any("already defined in" in text and "good.yaml" in text for text in said)
    assert [p.metadata.name for p in rig.node.pods()] == ["good-n1"]


async def test_a_manifest_that_breaks_keeps_its_pod(rig: Rig, hollow: HollowRuntime):
    await rig.start()
    path = rig.write("edited", {"containers": [container()]})
    await eventually(lambda: rig.phase("edited") == "Running")
    path.write_text("apiVersion: v1\nkind: Pod\nspec: {cont")
    await eventually(lambda: "FailedManifest" in rig.reasons())
    assert rig.phase("edited") == "Running"
    assert hollow.counts()["RunPodSandbox"]["calls"] == 1


async def test_a_pod_past_its_deadline_fails(rig: Rig):
    await rig.start()
    rig.write("late", {"containers": [container()], "activeDeadlineSeconds": 1})
    await eventually(lambda: rig.phase("late") == "Failed")
    assert rig.pod("late").status.reason == "DeadlineExceeded"


async def test_killing_a_pod_waits_for_its_containers_and_is_for_good(rig: Rig, hollow: HollowRuntime):
    await rig.start()
    rig.write("victim", {"containers": [container()]}, annotations={f"{EXIT}stop-after": "300ms"})
    await eventually(lambda: rig.phase("victim") == "Running")
    end = PodEnd(
        "Preempting", "Preempted in order to admit critical pod", condition_reason="TerminationByKubelet"
    )
    await rig.node.kill_pod(rig.pod("victim"), end)
    assert not any(c.state == 1 for c in hollow.service.records.containers.values())
    await eventually(lambda: rig.phase("victim") == "Failed")
    status = rig.pod("victim").status
    assert status.reason == "Preempting"
    assert {c.type: c.reason for c in status.conditions}["DisruptionTarget"] == "TerminationByKubelet"
    await asyncio.sleep(0.3)
    assert rig.phase("victim") == "Failed"


async def test_a_pod_waits_for_the_resources_of_one_that_the_node_ends(rig: Rig, hollow: HollowRuntime):
    await rig.start()
    most = rig.node.node_object().status.allocatable["cpu"]
    all_of_it = [container(resources={"requests": {"cpu": str(most)}})]
    rig.write("evicted", {"containers": all_of_it}, annotations={f"{EXIT}stop-after": "500ms"})
    await eventually(lambda: rig.phase("evicted") == "Running")
    ending = asyncio.create_task(rig.node.kill_pod(rig.pod("evicted"), PodEnd("Evicted", "no room")))
    await asyncio.sleep(0)
    rig.write("next", {"containers": all_of_it, "priorityClassName": "system-node-critical"})
    await eventually(lambda: rig.reason("next"))
    assert rig.reason("next") == "WaitingForResources"
    assert rig.pod("next").status.message.endswith("default/evicted-n1")
    await ending
    await eventually(lambda: rig.phase("next") == "Running")
    assert "Preempting" not in rig.reasons()
    assert not [reason for reason in rig.reasons() if reason.startswith("OutOf")]


async def test_a_lost_runtime_is_reported_and_survived(rig: Rig, hollow: HollowRuntime):
    await rig.start()
    rig.write("before", {"containers": [container()]})
    await eventually(lambda: rig.phase("before") == "Running")
    await hollow._server.stop()
    rig.write("during", {"containers": [container()]})
    await eventually(lambda: "FailedCreatePodSandBox" in rig.reasons())
    assert rig.phase("before") == "Running"
    await hollow._server.start()
    await eventually(lambda: rig.phase("during") == "Running")


async def test_a_sandbox_that_is_refused_repeatedly_is_reported_once(
    rig: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("engine.node.sync.sync.RETRIES", RetryDelays(0.05, 0.05))
    run, tries = hollow.backend.run_sandbox, 0

    async def refuse(sandbox: object) -> None:
        nonlocal tries
        tries += 1
        raise Refused("no address is left")

    monkeypatch.setattr(hollow.backend, "run_sandbox", refuse)
    await rig.start()
    rig.write("poor", {"containers": [container()]})
    await eventually(lambda: tries >= 4)
    said = [(e.reason, e.message) for e in rig.node.recorder if e.type == "Warning" and e.pod]
    status = "rpc error: code = FailedPrecondition desc = no address is left"
    assert said == [("FailedCreatePodSandBox", f"Failed to create pod sandbox: {status}")]
    monkeypatch.setattr(hollow.backend, "run_sandbox", run)
    await eventually(lambda: rig.phase("poor") == "Running")


async def test_an_unreachable_runtime_is_one_clear_error(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.node.runtime_view.wait_until_available.WAIT_SECONDS", 0.5)
    rig.endpoint = rig.root.parent / "nothing.sock"
    with pytest.raises(Refused, match=r"CRI Version on unix://.*nothing\.sock: the runtime does not answer"):
        await rig.start()
    await rig.node.stop()
    rig.node = None


@pytest.mark.parametrize("reading", ["read_pod_sandboxes", "status"])
async def test_a_runtime_that_dies_while_the_node_starts_is_waited_for(
    rig: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch, reading: str
):
    read, deaths = getattr(RuntimeClient, reading), 0

    async def die_first(client: RuntimeClient, *args: Any) -> Any:
        nonlocal deaths
        if deaths == 0:
            deaths += 1
            await hollow.stop()
            asyncio.get_running_loop().call_later(
                0.3, lambda: backs.append(asyncio.ensure_future(hollow.start()))
            )
        return await read(client, *args)

    backs: list[asyncio.Future[None]] = []
    monkeypatch.setattr(RuntimeClient, reading, die_first)
    rig.write("web", {"containers": [container()]})
    await rig.start()
    assert deaths == 1
    await backs.pop()
    await eventually(lambda: rig.phase("web") == "Running")


async def test_one_agent_per_root(rig: Rig):
    await rig.start()
    second = Node(config=rig.config, runtime_endpoint=str(rig.endpoint), root=rig.root, name="n1")
    with pytest.raises(Refused, match="another agent is running on this directory"):
        await second.start()
    await second.stop()


BEYOND: dict[str, dict[str, Any]] = {
    "images": {
        "order": "layers",
        "accounting": "measured",
        "keep_records": True,
        "leases": True,
        "keep": ["registry.example.com/*"],
        "prepull": ["busybox:1"],
    },
    "eviction": {
        "recheck_before_evict": True,
        "reclaim_settle": Duration(30),
        "reclaim_everywhere": True,
        "cpu_stall": 99,
        "io_stall": 99,
        "project_quotas": "all",
    },
    "probes": {
        "liveness_kills_per_owner": 1,
        "liveness_kills_per_node": 1,
        "network": "pod",
        "start_period": Duration(0.1),
    },
}
"""What goes beyond the kubelet and needs no cgroups of its own, switched on."""


@pytest.mark.parametrize("beyond", [{}, BEYOND], ids=["as it comes", "with all switched on"])
async def test_a_quiet_node_only_relists(rig: Rig, hollow: HollowRuntime, beyond: dict[str, dict[str, Any]]):
    """Relists become rarer, which `test_relisting.py` checks; features that are off have no task."""

    def calls() -> dict[str, int]:
        relist = {"ListPodSandbox", "ListContainers"}
        return {name: count["calls"] for name, count in hollow.counts().items() if name not in relist}

    for section, fields in beyond.items():
        for name, value in fields.items():
            setattr(getattr(rig.section, section), name, value)
    hollow.images.add("busybox:1")
    node = await rig.start()
    for index in range(5):
        rig.write(f"quiet{index}", {"containers": [container()]})
    await eventually(lambda: all(rig.phase(f"quiet{i}") == "Running" for i in range(5)))
    await asyncio.sleep(1.5)
    before, decided = calls(), len(node.decisions.after(0))
    tasks = {name for name, _ in node.healthz() if name not in ("ping", "log", "syncloop", "runtime")}
    assert before
    await asyncio.sleep(1.5)
    assert calls() == before
    assert len(node.decisions.after(0)) == decided
    assert tasks == {
        "cgroup-reconcile",
        "records",
        "container-gc",
        "cpu-manager-state",
        "device-checkpoint",
        "dra-health-state",
        "dra-reconcile",
        "dra-state",
        "eviction",
        "image-gc",
        "log-rotation",
        "manifests",
        "memory-manager-state",
        "pod-cidr",
        "runtime-events",
        "runtime-health",
        "runtime-relist",
    }


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a mounted file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True, timeout=PATIENCE
    )
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True, timeout=PATIENCE)


@pytest.mark.root
async def test_a_full_disk_is_reported_and_survived(small_disk: Path, rig: Rig):
    """Pods that need room on the full root directory wait, others run on."""
    rig.root = small_disk / "root"
    await rig.start()
    rig.write("before", {"containers": [container()]})
    await eventually(lambda: rig.phase("before") == "Running")
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError):
        ballast.write_bytes(b"x" * (128 << 10))
    rig.write("during", {"containers": [container()]})
    await eventually(lambda: any("No space left on device" in e.message for e in rig.node.recorder))
    assert rig.phase("before") == "Running"
    assert rig.phase("during") == "Pending"
    ballast.unlink()
    await eventually(lambda: rig.phase("during") == "Running")


async def test_processes_that_a_lost_container_left_are_killed_before_it_restarts(
    rig: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
):
    """A runtime that was killed during a start may report an end while the process still runs."""
    await rig.start()
    rig.write("half", {"restartPolicy": "Always", "containers": [container()]})
    await eventually(lambda: rig.phase("half") == "Running")
    pod = rig.pod("half")
    before = pod.status.container_statuses[0].container_id.rpartition("/")[2]
    killed: list[tuple[str, str]] = []
    cgroups = rig.node.running._cgroups

    def kill(_: object, uid: str, group: str) -> int:
        killed.append((uid, group))
        return 0

    monkeypatch.setattr(type(cgroups), "kill_container", kill)
    hollow.end_container(before, exit_code=0)
    await eventually(lambda: rig.pod("half").status.container_statuses[0].restart_count == 1)
    assert killed == [(pod.uid, before)]
