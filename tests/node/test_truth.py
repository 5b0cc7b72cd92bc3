"""What runs is known before what is new is judged: restarts, edits, ends and rejections of whole nodes."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import Refused
from engine.api.lifecycle import PodEnd
from engine.devices.checkpoint_file import CheckpointFile
from engine.node import pods
from engine.runtime.hollow import HollowRuntime
from engine.testing.device_plugin import Fault
from tests.devices.device_bench import GPU, DeviceBench
from tests.node_bench import container
from tests.waiting import eventually

PREFIX = "runtime.kubengine.dev/"
MOST_CPUS = f"{750 * (os.cpu_count() or 1)}m"
SLOW_STOP = {f"{PREFIX}stop-after": "300ms"}

LARGE = {"containers": [container(resources={"requests": {"cpu": MOST_CPUS}})]}
HOST_PORT = {"containers": [container(ports=[{"containerPort": 80, "hostPort": 18080}])]}
HOST_NETWORK = {
    "hostNetwork": True,
    "containers": [container(ports=[{"containerPort": 18081, "hostPort": 18081}])],
}
DEVICES = {"containers": [container(resources={"limits": {GPU: 2}})]}
KINDS = [
    pytest.param(LARGE, "UnexpectedAdmissionError", id="large"),
    pytest.param(HOST_PORT, "NodePorts", id="host-port"),
    pytest.param(HOST_NETWORK, "NodePorts", id="host-network"),
    pytest.param(DEVICES, "UnexpectedAdmissionError", id="devices"),
]


@pytest.fixture
async def bench() -> AsyncIterator[DeviceBench]:
    """A node with two devices on which any pod of `KINDS` has no place for a second one."""
    with tempfile.TemporaryDirectory(prefix="kt-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            bench = DeviceBench(Path(short), runtime)
            await bench.start()
            await bench.plugin(2)
            yield bench
            await bench.close()


def with_image(spec: dict[str, Any], image: str) -> dict[str, Any]:
    return {**spec, "containers": [{**each, "image": image} for each in spec["containers"]]}


def sandboxes(bench: DeviceBench, name: str) -> int:
    records = bench.runtime.service.records.sandboxes.values()
    return sum(sandbox.config.metadata.name == f"{name}-n1" for sandbox in records)


@pytest.mark.parametrize(("spec", "reason"), KINDS)
async def test_what_runs_keeps_its_place_from_a_pod_that_sorts_first(bench, spec, reason):
    bench.write("m", spec)
    await eventually(lambda: bench.running("m"))
    await bench.node.stop()
    bench.write("a", spec)
    await bench.start()
    await eventually(lambda: bench.allocatable() == 2)
    await eventually(lambda: bench.phase("a") == "Failed" and bench.running("m"))
    assert bench.pod("a").status.reason == reason
    assert bench.runtime.counts()["StartContainer"]["calls"] == 1


async def test_devices_of_pods_that_run_are_never_given_out_again(bench):
    bench.wants("one")
    bench.wants("two")
    await eventually(lambda: bench.running("one", "two"))
    held = {name: bench.gpus(name) for name in ("one", "two")}
    await bench.node.stop()
    bench.write("a", {"containers": [container()]})
    bench.wants("b")
    await bench.start()
    await eventually(lambda: bench.running("a") and bench.allocatable() == 2)
    await eventually(lambda: bench.phase("b") == "Failed")
    assert await bench.listed() == {"a-n1": [], **{f"{name}-n1": ids for name, ids in held.items()}}
    assert {name: bench.gpus(name) for name in ("one", "two")} == held


@pytest.mark.parametrize(("spec", "reason"), KINDS)
async def test_an_edited_manifest_s_pod_runs_when_its_predecessor_is_gone(bench, spec, reason):
    bench.write("web", with_image(spec, "busybox:1"), annotations=SLOW_STOP)
    await eventually(lambda: bench.running("web"))
    uid = bench.pod("web").uid
    most = 0
    run = bench.runtime.backend.run_sandbox

    async def count(sandbox: object) -> object:
        nonlocal most
        most = max(most, sandboxes(bench, "web"))
        return await run(sandbox)

    bench.runtime.backend.run_sandbox = count
    bench.write("web", with_image(spec, "busybox:2"), annotations=SLOW_STOP)
    await eventually(lambda: bench.running("web") and bench.pod("web").uid != uid)
    assert most == 0, "its predecessor was there when it started"
    assert reason not in bench.reasons()


@pytest.mark.parametrize(("spec", "reason"), KINDS)
async def test_an_edit_while_no_agent_was_there_waits_too(bench, spec, reason):
    bench.write("web", with_image(spec, "busybox:1"), annotations=SLOW_STOP)
    await eventually(lambda: bench.running("web"))
    uid = bench.pod("web").uid
    await bench.node.stop()
    bench.write("web", with_image(spec, "busybox:2"), annotations=SLOW_STOP)
    await bench.start()
    await eventually(lambda: bench.pod("web") and bench.pod("web").uid != uid and bench.running("web"))
    assert sandboxes(bench, "web") == 1


@pytest.mark.parametrize(("spec", "reason"), KINDS)
async def test_a_pod_under_another_name_waits_for_the_one_that_makes_it_room(bench, spec, reason):
    """As on the kubelet a pod that nobody wants is not counted; here what it holds is waited for too."""
    old = bench.write("old", spec, annotations=SLOW_STOP)
    await eventually(lambda: bench.running("old"))
    most = 0
    run = bench.runtime.backend.run_sandbox

    async def count(sandbox: object) -> object:
        nonlocal most
        running = [c for c in bench.runtime.service.records.containers.values() if c.state == 1]
        most = max(most, len(running))
        return await run(sandbox)

    bench.runtime.backend.run_sandbox = count
    old.unlink()
    bench.write("new", spec)
    await eventually(lambda: bench.running("new"))
    assert most == 0, "it started while what it needs was held"
    assert reason not in bench.reasons()


async def test_a_rejected_pod_is_tried_again_when_there_is_room(bench):
    first = bench.write("first", HOST_PORT)
    await eventually(lambda: bench.running("first"))
    bench.write("second", HOST_PORT)
    bench.write("third", HOST_PORT)
    await eventually(lambda: bench.phase("second") == bench.phase("third") == "Failed")
    first.unlink()
    await eventually(lambda: bench.running("second"))
    assert bench.phase("third") == "Failed"
    assert bench.reasons().count("NodePorts") == 2


async def test_a_rejected_pod_is_tried_again_when_its_plugin_comes_back(bench):
    bench.wants("first", 2)
    await eventually(lambda: bench.running("first"))
    (bench.manifests / "first.yaml").unlink()
    await eventually(lambda: not bench.node.pods())
    (plugin,) = bench.plugins
    await plugin.stop()
    await eventually(lambda: bench.allocatable() == 0)
    bench.wants("second")
    await eventually(lambda: bench.phase("second") == "Failed")
    await plugin.start()
    plugin.follow(bench.plugin_dir)
    await eventually(lambda: bench.running("second"))


async def test_a_pod_whose_devices_could_not_be_kept_is_judged_again(bench, monkeypatch):
    replace, failures = CheckpointFile._replace, 0

    def fails(self: CheckpointFile, text: bytes) -> None:
        nonlocal failures
        if b"PodUID" in text and failures < 2:
            failures += 1
            raise Refused("cannot write", subject=str(self.path), errno=errno.ENOMEM)
        replace(self, text)

    monkeypatch.setattr(CheckpointFile, "_replace", fails)
    monkeypatch.setattr(pods, "RETRY_SECONDS", 0.05)
    bench.wants("a")
    await eventually(lambda: bench.running("a"))
    assert failures == 2


@pytest.mark.parametrize("fault", [Fault.ALLOCATE_HANGS, Fault.PREFERRED_HANGS])
async def test_a_plugin_that_hangs_holds_up_its_own_pod_alone(bench, fault):
    (plugin,) = bench.plugins
    if fault is Fault.PREFERRED_HANGS:
        await plugin.stop()
        bench.plugins.clear()
        plugin = await bench.plugin(2, prefer=["gpu-1"])
    await plugin.fail_with(fault)
    bench.wants("hangs")
    await eventually(lambda: bench.phase("hangs") == "Pending")
    bench.write("other", LARGE)
    await eventually(lambda: bench.running("other"))
    assert bench.phase("hangs") == "Pending"


ENDS = {
    "succeeded": ({}, "0", None, "Succeeded"),
    "failed": ({}, "3", None, "Failed"),
    "start-error": ({f"{PREFIX}start-error": "no such file"}, "0", None, "Failed"),
    "evicted": ({}, None, PodEnd("Evicted", "The node was low on resource: memory."), "Failed"),
    "preempted": ({}, None, PodEnd("Preempting", "Preempted", condition_reason="T"), "Failed"),
    "deadline": ({}, None, None, "Failed"),
}


@pytest.mark.parametrize("forgotten", [False, True], ids=["runtime-knows", "runtime-forgot"])
@pytest.mark.parametrize("how", ENDS)
async def test_a_pod_that_has_ended_stays_ended(bench, how, forgotten):
    annotations, code, end, phase = ENDS[how]
    if code is not None:
        annotations = {**annotations, f"{PREFIX}exit-after": "10ms", f"{PREFIX}exit-code": code}
    spec = {"containers": [container()], "restartPolicy": "Never"}
    if how == "deadline":
        spec["activeDeadlineSeconds"] = 1
    bench.write("job", spec, annotations=annotations)
    if end is not None:
        await eventually(lambda: bench.running("job"))
        await bench.node.kill_pod(bench.pod("job"), end)
    await eventually(lambda: bench.phase("job") == phase and not bench.node.active_pods())
    kept = bench.root / "pods" / bench.pod("job").uid / "end.json"
    await eventually(lambda: kept.exists() and bench.pod("job").status.phase.encode() in kept.read_bytes())
    status = bench.pod("job").status
    await bench.node.stop()
    calls = bench.runtime.counts()["StartContainer"]["calls"]
    if forgotten:
        bench.runtime.service.records.containers.clear()
        bench.runtime.service.records.sandboxes.clear()
    for sandbox in bench.runtime.service.records.sandboxes.values():
        sandbox.config.annotations.pop(f"{PREFIX}start-error", None)
    await bench.start()
    assert bench.phase("job") == phase
    assert bench.pod("job").status == status
    bench.write("later", {"containers": [container()]})
    await eventually(lambda: bench.running("later"))
    assert bench.pod("job").status == status
    assert bench.runtime.counts()["StartContainer"]["calls"] == calls + 1


async def test_a_pod_that_was_being_ended_is_ended_by_the_next_agent(bench):
    bench.write("victim", {"containers": [container()]}, annotations={f"{PREFIX}stop-after": "1s"})
    await eventually(lambda: bench.running("victim"))
    killing = asyncio.create_task(
        bench.node.kill_pod(bench.pod("victim"), PodEnd("Evicted", "The node was low on resource: memory."))
    )
    await eventually(lambda: "Killing" in bench.reasons())
    await bench.node.stop()
    killing.cancel()
    await bench.start()
    await eventually(lambda: bench.phase("victim") == "Failed")
    assert bench.pod("victim").status.reason == "Evicted"
    assert bench.runtime.counts()["StartContainer"]["calls"] == 1


async def test_a_bad_record_of_an_end_is_named_and_holds_up_nobody(bench, caplog):
    bench.write("job", {"containers": [container()], "restartPolicy": "Never"})
    await eventually(lambda: bench.running("job"))
    await bench.node.stop()
    kept = bench.root / "pods" / bench.runtime_uid("job") / "end.json"
    kept.write_bytes(b"\xff{")
    await bench.start()
    await eventually(lambda: bench.running("job"))
    assert str(kept) in caplog.text


async def test_a_start_that_failed_is_not_tried_again_by_the_next_agent_where_nothing_restarts(bench):
    spec = {"containers": [container("bad"), container("good")], "restartPolicy": "Never"}
    bench.write("job", spec, annotations={f"{PREFIX}start-error.bad": "no such file"})

    def state_of_bad() -> Any:
        pod = bench.pod("job")
        statuses = (pod.status.container_statuses if pod is not None else None) or []
        return next((s.state.terminated for s in statuses if s.name == "bad"), None)

    await eventually(lambda: bench.running("job") and state_of_bad())
    before = state_of_bad()
    assert before.reason == "StartError"
    calls = bench.runtime.counts()["StartContainer"]["calls"]
    await bench.restart()
    bench.write("later", {"containers": [container()]})
    await eventually(lambda: bench.running("job", "later"))
    assert bench.runtime.counts()["StartContainer"]["calls"] == calls + 1
    assert state_of_bad() == before
