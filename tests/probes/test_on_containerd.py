"""The kubelet's own probe scenarios, on containers of a real containerd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.runtime.client import RuntimeClient
from tests.runtime.pods import Pods

from .conftest import until
from .scenario_node import ScenarioNode

pytestmark = [pytest.mark.root, pytest.mark.containerd]

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
async def node(containerd, tmp_path: Path, private_cgroup_root: str) -> AsyncIterator[ScenarioNode]:
    client = RuntimeClient(str(containerd.socket))
    node = ScenarioNode(Pods(client, tmp_path, private_cgroup_root, "containerd"))
    await node.start()
    yield node
    await node.stop()
    await node.pods.remove_all()
    await client.close()


@pytest.mark.parametrize("sidecar", [False, True], ids=["container", "sidecar"])
@pytest.mark.parametrize("kind", UNHEALTHY_AFTER_2_S)
async def test_failing_liveness_restarts_again_and_again(node, kind, sidecar):
    script, probe = UNHEALTHY_AFTER_2_S[kind]
    await node.run(
        script,
        sidecar=sidecar,
        liveness={**probe, "failureThreshold": 1, "initialDelaySeconds": 1, "ms": FAST},
    )
    seen = [0]

    def grown() -> bool:
        assert node.restarts["p/app"] >= seen[-1]
        seen.append(node.restarts["p/app"])
        return seen[-1] >= 2

    await until(grown, 40)
    assert any(message.startswith("Liveness probe failed: ") for message in node.messages())
    assert node.restarts.get("p/main", 0) == 0


@pytest.mark.parametrize("sidecar", [False, True], ids=["container", "sidecar"])
async def test_healthy_liveness_never_restarts(node, sidecar):
    for kind, (script, probe) in HEALTHY.items():
        await node.run(
            script, name=kind, sidecar=sidecar,
            liveness={**probe, "failureThreshold": 1, "initialDelaySeconds": 1, "ms": FAST},
        )  # fmt: skip
    await until(lambda: all(p["outcomes"]["success"] > 10 for p in node.manager.describe()["probes"]), 30)
    assert set(node.restarts.values()) == {0}
    assert node.messages() == []


async def test_initial_delay_is_honoured(node):
    await node.run(WAIT, readiness={"exec": {"command": ["false"]}, "initialDelaySeconds": 3, "ms": FAST})
    await until(node.messages)
    assert node.first_event() >= 3


async def test_failing_readiness_never_restarts(node):
    await node.run(WAIT, readiness={"exec": {"command": ["false"]}, "failureThreshold": 1, "ms": FAST})
    await until(lambda: len(node.messages()) > 8)
    assert node.restarts["p/app"] == 0
    assert not node.manager.is_ready("uid-p", "app")


async def test_exec_time_out_restarts_and_leaves_no_process_behind(node):
    command = ["sh", "-c", "sleep 54321 & sleep 54322"]
    await node.run(WAIT, liveness={"exec": {"command": command}, "failureThreshold": 3, "timeoutSeconds": 1})
    await until(lambda: len(node.messages()) >= 2, 20)
    assert "timed out after 1s" in node.messages()[0]
    assert node.restarts["p/app"] == 0
    container = node.containers["p/app"]
    lasting = [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.read_bytes() == b"sleep\054321\0"
        and container.encode() in path.with_name("cgroup").read_bytes()
    ]
    assert len(lasting) <= 1, "only the attempt in hand may have one"
    await until(lambda: node.restarts["p/app"] >= 1, 20)


async def test_redirects(node):
    """A directory without its slash is a local redirect; the other goes to another host."""
    await node.run(
        HTTPD,
        name="local",
        liveness={"httpGet": {"port": 8080, "path": "/dir"}, "ms": FAST, "initialDelaySeconds": 1},
    )
    await node.run(
        AWAY,
        name="away",
        liveness={"httpGet": {"port": 8080, "path": "/"}, "ms": FAST, "initialDelaySeconds": 1},
    )
    await until(lambda: node.messages("ProbeWarning"))
    await until(lambda: node.manager.describe(pod="local")["probes"][0]["outcomes"]["success"] > 5)
    assert "Response body: <a href=0.0.0.0/>" in node.messages("ProbeWarning")[0]
    assert node.manager.describe()["loop"]["redirects"] > 5
    assert set(node.restarts.values()) == {0}


async def test_startup_delays_liveness(node):
    """Liveness would fail from the beginning; it only counts once the startup probe has succeeded."""
    await node.run(
        f"sleep 3; touch /tmp/started; {WAIT}",
        startup={"exec": {"command": ["cat", "/tmp/started"]}, "failureThreshold": 60, "ms": FAST},
        liveness={"exec": {"command": ["false"]}, "failureThreshold": 1, "ms": FAST},
    )
    await until(lambda: node.restarts["p/app"] == 1, 20)
    liveness = [event.at for event in node.recorder if event.message.startswith("Liveness")]
    started = next(r for r in node.results if r.type == "startup" and r.result == "success")
    assert started.container_id
    assert liveness[0] >= next(iter(node.recorder)).at + 2


async def test_failing_startup_restarts(node):
    await node.run(WAIT, startup={"exec": {"command": ["false"]}, "failureThreshold": 3, "ms": FAST})
    await until(lambda: node.restarts["p/app"] >= 1, 20)


@pytest.mark.parametrize("type", ["liveness", "startup"])
async def test_the_probes_own_grace_period_replaces_the_pods(node, type):
    probe = {"exec": {"command": ["false"]}, "failureThreshold": 1, "terminationGracePeriodSeconds": 1}
    await node.run(STUBBORN, grace=60, **{type: {**probe, "ms": FAST}})
    await until(lambda: node.kill_seconds, 30)
    assert node.kill_seconds[0] < 30


async def test_probes_while_terminating(node):
    """Liveness ends with the pod's deletion, so nothing restarts; readiness goes on and turns."""
    await node.run(
        f"touch /tmp/r; trap 'sleep 1; rm /tmp/r; sleep 3; exit 0' TERM; {WAIT}",
        readiness={"exec": {"command": ["cat", "/tmp/r"]}, "failureThreshold": 1, "ms": FAST},
        liveness={"exec": {"command": ["cat", "/tmp/r"]}, "failureThreshold": 1, "ms": FAST},
    )
    await until(lambda: node.manager.is_ready("uid-p", "app"))
    deleting = asyncio.create_task(node.delete("p", 20))
    began = time.monotonic()
    await until(lambda: any(m.startswith("Readiness probe failed") for m in node.messages()), 15)
    assert time.monotonic() - began < 10
    await deleting
    assert not any(message.startswith("Liveness") for message in node.messages())
    assert not node.manager.is_ready("uid-p", "app")
    assert node.restarts["p/app"] == 0
