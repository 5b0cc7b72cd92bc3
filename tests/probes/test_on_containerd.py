"""The kubelet's own probe scenarios, by a node on a real containerd."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.testing.containerd import Containerd
from tests.node_rig import Rig
from tests.probes.scenario_node import ScenarioNode
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.containerd]
BOTH = pytest.mark.parametrize("sidecar", [False, True], ids=["container", "sidecar"])

WAIT = "while true; do sleep 1; done"
STUBBORN = "trap '' TERM; while true; do sleep 1; done"
HTTPD = (
    "mkdir -p /tmp/www/dir; echo ok > /tmp/www/healthz; echo ok > /tmp/www/dir/index.html; "
    f"httpd -p 8080 -h /tmp/www; {WAIT}"
)
AWAY = (
    r"printf 'HTTP/1.1 302 Found\r\nLocation: http://0.0.0.0/\r\nContent-Length: 17\r\n\r\n"
    "<a href=0.0.0.0/>' > /tmp/away; "
    "nc -ll -p 8080 -e /bin/sh -c 'cat /tmp/away; sleep 0.2'"
)
GRPC = (
    r"printf '\0\0\0\4\0\0\0\0\0\0\0\1\1\4\0\0\0\1\210\0\0\7\0\0\0\0\0\1\0\0\0\0\2\10\1"
    r"\0\0\17\1\5\0\0\0\1\100\13grpc-status\0010' > /tmp/grpc; "
    "nc -ll -p 9090 -e /bin/sh -c 'head -c 100 > /dev/null; cat /tmp/grpc; sleep 0.2'"
)
UNHEALTHY_AFTER_2_S = {
    "exec": (
        f"touch /tmp/good; (sleep 2; rm /tmp/good) & {WAIT}",
        {"exec": {"command": ["cat", "/tmp/good"]}},
    ),
    "http": (
        HTTPD.replace("; while", "; (sleep 2; rm /tmp/www/healthz) & while"),
        {"httpGet": {"port": 8080, "path": "/healthz"}},
    ),
    "tcp": (f"httpd -p 8080 -h /tmp; (sleep 2; killall httpd) & {WAIT}", {"tcpSocket": {"port": 8080}}),
    "grpc": (f"({GRPC}) & (sleep 2; killall nc) & {WAIT}", {"grpc": {"port": 9090}}),
}
HEALTHY = {
    "exec": (WAIT, {"exec": {"command": ["true"]}}),
    "http": (HTTPD, {"httpGet": {"port": 8080, "path": "/healthz"}}),
    "tcp": (HTTPD, {"tcpSocket": {"port": 8080}}),
    "grpc": (GRPC, {"grpc": {"port": 9090}}),
}
FAST = {"periodMilliseconds": 200}


@pytest.fixture
async def node(
    containerd: Containerd, tmp_path: Path, private_cgroup_root: str
) -> AsyncIterator[ScenarioNode]:
    rig = Rig(
        tmp_path,
        containerd.socket,
        cgroups_per_qos=True,
        enforce_node_allocatable=["pods"],
        cgroup_root=private_cgroup_root,
    )
    node = ScenarioNode(rig)
    await rig.start()
    yield node
    closing = asyncio.ensure_future(rig.close())
    done, _ = await asyncio.wait({closing}, timeout=5)
    if not done:  # a container that ignores SIGTERM and has a minute left
        await asyncio.to_thread(containerd.remove_pods)
    await closing


@BOTH
async def test_failing_liveness_restarts_again_and_again(node, sidecar):
    for kind, (script, probe) in UNHEALTHY_AFTER_2_S.items():
        times = {**FAST, "initialDelayMilliseconds": 5000}
        liveness = {**probe, "failureThreshold": 1, "timeoutSeconds": 20, "ms": times}
        node.run(script, name=kind, sidecar=sidecar, liveness=liveness)
    seen = dict.fromkeys(UNHEALTHY_AFTER_2_S, 0)

    def grown() -> bool:
        for kind in seen:
            now = node.restarts(kind)
            assert now >= seen[kind], "a restart count never falls"
            seen[kind] = now
        return min(seen.values()) >= 2

    await eventually(grown)
    assert any(message.startswith("Liveness probe failed: ") for message in node.messages())
    assert any("failed liveness probe" in message for message in node.messages("Killing"))
    if sidecar:
        assert {node.restarts(kind, "main") for kind in seen} == {0}


@BOTH
async def test_healthy_liveness_never_restarts(node, sidecar):
    for kind, (script, probe) in HEALTHY.items():
        times = {**FAST, "initialDelayMilliseconds": 5000}
        liveness = {**probe, "failureThreshold": 1, "timeoutSeconds": 20, "ms": times}
        node.run(script, name=kind, sidecar=sidecar, liveness=liveness)
    await eventually(lambda: all(node.rig.phase(kind) == "Running" for kind in HEALTHY))
    await eventually(lambda: all(node.outcomes(kind)["success"] > 10 for kind in HEALTHY))
    assert {node.restarts(kind) for kind in HEALTHY} == {0}
    assert node.messages() == []


async def test_initial_delay_is_honoured(node):
    node.run(WAIT, readiness={"exec": {"command": ["false"]}, "initialDelaySeconds": 3, "ms": FAST})
    await eventually(node.messages)
    assert node.times("Unhealthy")[0] - node.times("Started")[0] >= 2.5


@BOTH
async def test_failing_readiness_never_restarts(node, sidecar):
    """Nor does a sidecar that isn't ready keep the main container from starting."""
    unready = {"exec": {"command": ["false"]}, "failureThreshold": 1, "ms": FAST}
    node.run(WAIT, sidecar=sidecar, readiness=unready)
    await eventually(lambda: len(node.messages()) > 8)
    if sidecar:
        await eventually(lambda: node.running("p", "main"))
    assert node.restarts() == 0
    assert not node.ready()
    conditions = {c.type: c.status for c in node.pod().status.conditions or []}
    assert conditions["Ready"] == "False"


async def test_exec_time_out_restarts_and_leaves_no_process_behind(node):
    """The runtime counts whole seconds; the probe itself cuts off fractions."""

    def left(name: str, seconds: str) -> int:
        container = node.container_id(name).encode()
        found = 0
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                found += (
                    path.read_bytes() == f"sleep\0{seconds}\0".encode()
                    and container in path.with_name("cgroup").read_bytes()
                )
        return found

    def slow(seconds: str, threshold: int, timeout_ms: int) -> dict[str, Any]:
        command = ["sh", "-c", f"sleep {seconds} & sleep 60000"]
        times = {"timeoutMilliseconds": timeout_ms}
        return {"exec": {"command": command}, "failureThreshold": threshold, "ms": times}

    node.run(WAIT, name="restarts", liveness=slow("54321", 2, 1000))
    node.run(WAIT, name="whole", liveness=slow("54322", 100, 1000))
    node.run(WAIT, name="part", liveness=slow("54323", 100, 700))
    await eventually(lambda: node.restarts("restarts") >= 1)
    for name, seconds, after in (("whole", "54322", "1s"), ("part", "54323", "0.7s")):
        ended = f"timed out after {after}"
        await eventually(lambda ended=ended: sum(ended in message for message in node.messages()) >= 3)
        # Were they left, there would be three by now, and more with every attempt.
        await eventually(lambda name=name, seconds=seconds: left(name, seconds) <= 1)
        assert node.restarts(name) == 0


async def test_the_cost_of_commands_in_the_shim_of_their_pod(node):
    """Two pods on one runtime: command probes cost it more than others, and more if they are frequent."""
    node.run(WAIT, name="asks", readiness={"exec": {"command": ["true"]}, "ms": FAST})
    node.run(
        WAIT, name="rarely", readiness={"exec": {"command": ["true"]}, "ms": {"periodMilliseconds": 10**6}}
    )
    await eventually(lambda: node.ready("asks") and node.ready("rarely"))
    costs: Any = node.node.components["probe-commands"]

    async def spent() -> dict[str, float]:
        described = (await costs.describe())["pods"]
        assert [each["untold"] for each in described] == ["", ""]
        return {each["pod"]: each["runtime_cpu_seconds"] for each in described}

    before = await spent()
    runs = node.outcomes("asks")["success"]
    await eventually(lambda: node.outcomes("asks")["success"] >= runs + 20)
    grown = {pod: seconds - before[pod] for pod, seconds in (await spent()).items()}
    assert grown["default/asks-n1"] > 10 * max(grown["default/rarely-n1"], 0.001)
    assert [each["pod"] for each in (await costs.describe(pod="asks-n1"))["pods"]] == ["default/asks-n1"]


async def test_redirects(node):
    """A directory without its slash is a local redirect; the other goes to another host."""
    times = {**FAST, "initialDelayMilliseconds": 1000}
    node.run(HTTPD, name="local", liveness={"httpGet": {"port": 8080, "path": "/dir"}, "ms": times})
    node.run(AWAY, name="away", liveness={"httpGet": {"port": 8080, "path": "/"}, "ms": times})
    await eventually(lambda: node.messages("ProbeWarning"))
    await eventually(lambda: node.outcomes("local")["success"] > 5)
    assert "Response body: <a href=0.0.0.0/>" in node.messages("ProbeWarning")[0]
    assert node.manager.describe()["loop"]["redirects"] > 5
    assert node.restarts("local") == node.restarts("away") == 0


@BOTH
async def test_startup_delays_liveness(node, sidecar):
    """Liveness would fail from the beginning; it only counts once the startup probe has succeeded.

    The main container waits for its sidecar to have started.
    """
    node.run(
        f"sleep 3; touch /tmp/started; {WAIT}",
        sidecar=sidecar,
        startup={"exec": {"command": ["cat", "/tmp/started"]}, "failureThreshold": 60, "ms": FAST},
        liveness={"exec": {"command": ["false"]}, "failureThreshold": 1, "ms": FAST},
    )
    await eventually(lambda: node.restarts() == 1)
    assert node.times("Unhealthy", "Liveness")[0] - node.times("Started")[0] >= 2.5
    assert node.times("Unhealthy", "Startup")[0] < node.times("Unhealthy", "Liveness")[0]
    if sidecar:
        await eventually(lambda: node.running("p", "main"))
        started = {c: node.times("Started", container=c)[0] for c in ("app", "main")}
        assert started["main"] - started["app"] >= 2.5


@BOTH
async def test_failing_startup_restarts(node, sidecar):
    failing = {"exec": {"command": ["false"]}, "failureThreshold": 3, "ms": FAST}
    node.run(WAIT, sidecar=sidecar, startup=failing)
    await eventually(lambda: node.restarts() >= 1)
    assert any("failed startup probe" in message for message in node.messages("Killing"))
    if sidecar:
        assert node.times("Started", container="main") == []


@BOTH
@pytest.mark.parametrize("type", ["liveness", "startup"])
async def test_the_probes_own_grace_period_replaces_the_pods(node, type, sidecar):
    """The container ignores SIGTERM and its pod grants a minute; the probe grants a second."""
    probe = {"exec": {"command": ["false"]}, "failureThreshold": 1, "terminationGracePeriodSeconds": 1}
    node.run(STUBBORN, grace=60, sidecar=sidecar, **{type: {**probe, "ms": FAST}})
    await eventually(lambda: node.restarts() >= 1)


async def test_probes_while_terminating(node):
    """Liveness ends with the pod's deletion, so nothing restarts; readiness goes on and turns."""
    node.run(
        f"touch /tmp/r; trap 'sleep 1; rm /tmp/r; sleep 3; exit 0' TERM; {WAIT}",
        grace=20,
        readiness={"exec": {"command": ["cat", "/tmp/r"]}, "failureThreshold": 1, "ms": FAST},
        liveness={"exec": {"command": ["cat", "/tmp/r"]}, "failureThreshold": 1, "ms": FAST},
    )
    await eventually(node.ready)
    node.delete()
    await eventually(lambda: any(m.startswith("Readiness probe failed") for m in node.messages()))
    assert not any(message.startswith("Liveness") for message in node.messages())
    assert node.restarts() == 0
    await eventually(lambda: node.rig.pod("p") is None)
    assert len(node.times("Started")) == 1


async def test_a_sidecars_probes_while_terminating(node):
    """It outlives the main container, which takes its time: liveness has ended, readiness goes on."""
    good = {"exec": {"command": ["true"]}, "failureThreshold": 1, "ms": FAST}
    node.run(
        f"trap 'exit 0' TERM; {WAIT}",
        sidecar=True,
        main=f"trap 'sleep 6; exit 0' TERM; {WAIT}",
        grace=30,
        readiness=dict(good),
        liveness=dict(good),
    )
    await eventually(lambda: node.ready() and node.running("p", "main"))
    node.delete()
    await eventually(lambda: node.probe("liveness")["ended"])
    before = node.probe("readiness")["outcomes"]["success"]
    await eventually(lambda: node.probe("readiness")["outcomes"]["success"] > before)
    assert node.running("p", "app")
    await eventually(lambda: node.rig.pod("p") is None)
    assert not any(message.startswith("Liveness") for message in node.messages())
    assert len(node.times("Started")) == 2


async def test_ready_pods_stay_ready_across_an_agent_restart(node):
    """And a startup probe that has succeeded is not run again for the same container."""
    node.run(
        f"mkdir /tmp/s; touch /tmp/ok; {WAIT}",
        startup={"exec": {"command": ["rmdir", "/tmp/s"]}, "failureThreshold": 5, "ms": FAST},
        readiness={"exec": {"command": ["cat", "/tmp/ok"]}, "ms": {"periodMilliseconds": 2000}},
    )
    await eventually(node.ready)
    await node.rig.restart()
    await eventually(lambda: node.rig.pod("p") is not None and node.pod().status.container_statuses)
    assert node.ready()
    await eventually(lambda: any(p["outcomes"]["success"] for p in node.manager.describe()["probes"]))
    assert node.ready()
    assert node.restarts() == 0
    assert node.messages() == []
