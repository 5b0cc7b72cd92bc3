"""Tests that a whole node shows its decisions: in its subsystems, in a file, and on the terminal."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.api.duration import Duration
from engine.api.kubengine_config import DecisionsSection, EvictionSection, KubengineConfiguration
from engine.api.struct import to_json
from engine.cli.decisions import command
from engine.server.http.exchange import Request
from engine.server.listeners import HttpServer
from engine.server.routes import Routes
from tests.node_rig import Rig, container
from tests.waiting import eventually

API = {"annotations": {"kubernetes.io/config.source": "api"}}


def outcomes(rig, kind, name):
    """Return the outcomes of the decisions of a kind about a pod, in order."""
    assert rig.node is not None
    return [each.outcome for each in rig.node.decisions.after(0) if (each.kind, each.pod) == (kind, name)]


def the(rig, kind, name):
    (found,) = [e for e in rig.node.decisions.after(0) if (e.kind, e.pod) == (kind, name)]
    return found


def burstable(memory="16Mi"):
    return container(resources={"requests": {"memory": memory, "cpu": "10m"}})


def running(rig, name):
    return any(pod.full_name == name and pod.status.phase == "Running" for pod in rig.node.pods())


@pytest.fixture
async def small(tmp_path, hollow):
    """Yield a node for two pods that checks for evictions every 50 ms and writes its decisions to a file."""
    rig = Rig(tmp_path, hollow.socket, max_pods=2, read_only_port=0, healthz_port=0)
    rig.section = KubengineConfiguration(
        eviction=EvictionSection(interval=Duration(0.05)),
        decisions=DecisionsSection(file=str(tmp_path / "decisions.jsonl")),
    )
    await rig.start()
    yield rig
    await rig.close()


async def test_admission_refusal_restart_and_preemption_are_accounted_for(small, hollow, tmp_path):
    small.write("victim", {"containers": [burstable()]}, **API)
    small.write("again", {"containers": [container()]})
    await eventually(lambda: running(small, "default/victim") and running(small, "default/again-n1"))
    admitted = the(small, "admission", "default/victim")
    assert (admitted.outcome, admitted.inputs["qos"], admitted.inputs["podLimit"]) == (
        "admitted", "Burstable", 2,
    )  # fmt: skip
    assert admitted.inputs["requested"] == {"cpu": "10m", "memory": "16Mi"}
    assert admitted.inputs["used"] == {"cpu": "0", "memory": "0"}

    surplus = small.write("surplus", {"containers": [container()]}, **API)
    await eventually(lambda: outcomes(small, "admission", "default/surplus"))
    refused = the(small, "admission", "default/surplus")
    assert (refused.outcome, refused.inputs["pods"]) == ("refused", 2)
    assert refused.reason.startswith("OutOfpods: ")
    surplus.unlink()

    uid = small.pod("again").uid
    ended = small.node.running.watch.pod(uid).container("c")
    hollow.end_container(ended.id, exit_code=3, reason="Error")
    await eventually(lambda: outcomes(small, "restart", "default/again-n1"))
    restarted = the(small, "restart", "default/again-n1")
    assert (restarted.uid, restarted.container, restarted.reason) == (uid, "c", "Error with exit code 3")
    assert (restarted.inputs["id"], restarted.inputs["attempt"]) == (ended.id, 0)

    small.write("important", {"containers": [container()]})
    await eventually(lambda: outcomes(small, "admission", "default/important-n1"))
    assert outcomes(small, "admission", "default/important-n1") == ["admitted"]
    preempted = the(small, "preemption", "default/victim")
    assert (preempted.outcome, preempted.inputs["preemptor"]) == ("preempted", "default/important-n1")
    assert preempted.inputs["short"] == {"pods": 1}

    held = small.node.decisions.after(0)
    await small.node.remove_all_pods()
    await small.stop()
    lines = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert lines[: len(held)] == [json.loads(to_json(each)) for each in held]


async def test_a_pod_over_its_own_limit_is_evicted_for_what_it_used(small):
    volume = {"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}
    mounts = [{"name": "scratch", "mountPath": "/scratch"}]
    small.write("full", {"containers": [container(volumeMounts=mounts)], "volumes": [volume]}, **API)
    await eventually(lambda: running(small, "default/full"))
    (pod,) = small.node.pods()
    (scratch,) = (small.root / "pods" / pod.uid).glob("volumes/*/scratch")
    (scratch / "file").write_bytes(bytes(2 << 20))
    await eventually(lambda: outcomes(small, "eviction", "default/full"), 8)
    evicted = the(small, "eviction", "default/full")
    assert (evicted.outcome, evicted.uid) == ("evicted", pod.uid)
    assert 'EmptyDir volume "scratch" exceeds the limit "1Mi"' in evicted.reason
    assert evicted.inputs["used"] >= 2 << 20


async def test_an_eviction_names_the_threshold_and_the_measured_value(tmp_path, hollow):
    # This leaves a thousandth of the memory to pods: 2 MiB on a machine of 2 GiB.
    rig = Rig(tmp_path, hollow.socket, eviction_hard={"memory.available": "99.9%"})
    rig.section = KubengineConfiguration(eviction=EvictionSection(interval=Duration(0.05)))
    await rig.start()
    try:
        rig.write("greedy", {"containers": [burstable("1Mi")]}, **API)
        await eventually(lambda: outcomes(rig, "eviction", "default/greedy"))
        evicted = the(rig, "eviction", "default/greedy")
        assert evicted.reason.startswith("The node was low on resource: memory. ")
        inputs = evicted.inputs
        assert (inputs["signal"], inputs["request"], inputs["candidates"]) == ("memory.available", "1Mi", 1)
        assert inputs["available"] < inputs["threshold"] <= inputs["capacity"]
    finally:
        await rig.close()


async def test_steady_pods_are_no_decision(rig):
    node = await rig.start()
    rig.write("a", {"containers": [container()]})
    await eventually(lambda: rig.phase("a") == "Running")
    held = len(node.decisions.after(0))
    node.running.pods.notify(rig.pod("a").uid)
    node.running.pods.something_changed()
    await asyncio.sleep(0.1)
    assert len(node.decisions.after(0)) == held


async def test_the_component_shows_what_is_requested(rig):
    node = await rig.start()
    for name in ("a", "b"):
        rig.write(name, {"containers": [container()]})
    await eventually(lambda: rig.phase("a") == rig.phase("b") == "Running")
    uid = rig.pod("b").uid

    async def read_decisions(**query):
        got = await Routes(node).answer(Request("GET", "/kubengine/decisions", query))
        return got.status, json.loads(got.body)

    _, whole = await read_decisions()
    assert {each["pod"] for each in whole["decisions"]} == {"default/a-n1", "default/b-n1"}
    for query in ({"pod": "default/b-n1"}, {"pod": "b-n1"}, {"pod": uid}):
        _, some = await read_decisions(**query)
        assert {each["uid"] for each in some["decisions"]} == {uid}
    latest = whole["decisions"][-1]["time"]
    _, some = await read_decisions(since=repr(latest))
    assert some["decisions"] == [each for each in whole["decisions"] if each["time"] >= latest]
    assert await read_decisions(since=repr(latest + 1)) == (200, {"decisions": []})
    for query in ({"since": "yesterday"}, {"since": "nan"}, {"follow": "maybe"}):
        status, answer = await read_decisions(**query)
        assert status == 400
        assert answer["error"].startswith("decisions: ")


async def test_the_command_shows_decisions_and_follows_them(rig, hollow):
    node = await rig.start()
    rig.write("a", {"containers": [container()]})
    rig.write("b", {"containers": [container()]})
    await eventually(lambda: rig.phase("a") == rig.phase("b") == "Running")
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        socket = Path(short) / "s.sock"
        server = HttpServer(node, socket_path=socket)
        await server.start()
        at, one = ["--agent", str(socket)], ["--pod", "default/a-n1"]
        text = await asyncio.to_thread(CliRunner().invoke, command, [*at, *one])
        assert "admission admitted default/a-n1 (" in text.output
        assert "default/b-n1" not in text.output
        lines = await asyncio.to_thread(CliRunner().invoke, command, [*at, "-o", "json"])
        assert {json.loads(line)["pod"] for line in lines.output.splitlines()} == {
            "default/a-n1", "default/b-n1",
        }  # fmt: skip
        follower = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engine.cli", "decisions", *at, *one, "--follow", "-o", "json",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert follower.stdout is not None
        assert json.loads(await follower.stdout.readline())["kind"] == "admission"
        record = node.running.watch.pod(rig.pod("a").uid)
        hollow.end_container(record.container("c").id, exit_code=0)
        assert json.loads(await follower.stdout.readline())["kind"] == "restart"
        await server.stop()
        _, said = await follower.communicate()
        assert follower.returncode == 1
        assert b"the agent has ended the connection" in said
