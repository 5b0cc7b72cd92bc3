"""Probes from inside of pods: where their sockets are opened, and what happens if they cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.api.decisions import Decisions
from engine.api.errors import InvalidInput, Refused
from engine.api.kubengine_config import ProbesSection
from engine.probes.networks import MAX_RESOLVERS, NETWORK_OF_THE_NODE, PodNetworks, connect, open_network
from tests.probes.probed_pods import OK, Rig, http, pod_with, replying, serving
from tests.waiting import eventually

pytestmark = pytest.mark.root
ANSWERING = Path(__file__).with_name("answering.py")
NOWHERE = "203.0.113.1"
INSIDE = {"ms": {"network": "pod"}, "failureThreshold": 1}
KINDS: dict[str, Any] = {
    "http": {"httpGet": {"port": 8080}},
    "tcp": {"tcpSocket": {"port": 8080}},
    "grpc": {"grpc": {"port": 9090}},
    "by-name": {"httpGet": {"port": 8080, "host": "localhost"}},
}


class Networks(PodNetworks):
    """Network namespaces of processes of the test's own, by the id of a sandbox."""

    def __init__(self) -> None:
        self.pids: dict[str, int] = {}
        self.refused = 0

    async def open(self, sandbox_id: str) -> int:
        if sandbox_id not in self.pids:
            self.refused += 1
            raise Refused("gone", subject=sandbox_id)
        return os.open(f"/proc/{self.pids[sandbox_id]}/ns/net", os.O_RDONLY)


@contextlib.contextmanager
def pod_network(*command: str) -> Iterator[int]:
    """Start a process in a network that has only a loopback, and yield its pid."""
    inside = 'ip link set lo up && exec "$0" "$@"'
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", inside, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


@pytest.fixture
def server() -> Iterator[int]:
    with pod_network(sys.executable, str(ANSWERING)) as pid:
        yield pid


@pytest.fixture
def empty() -> Iterator[int]:
    with pod_network("sh", "-c", "echo ready; cat") as pid:
        yield pid


@pytest.fixture
async def inside() -> AsyncIterator[Rig]:
    networks = Networks()
    rig: Any = Rig(ProbesSection(), networks=networks, decisions=Decisions(lambda: 0.0))
    rig.networks = networks
    await rig.manager.start()
    yield rig
    await rig.manager.stop()


def run(rig: Any, uid: str, sandbox: str, pid: int | None, **probes: Any) -> None:
    if pid is not None:
        rig.networks.pids[sandbox] = pid
    rig.run(pod_with(uid, **probes), ip=NOWHERE)
    rig.manager.update_pod(uid, sandbox=sandbox)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_only_the_pod_can_reach(inside, server, kind):
    run(inside, "u1", "s1", server, readiness={**KINDS[kind], **INSIDE})
    await eventually(lambda: inside.manager.is_ready("u1", "app"))


async def test_each_pod_is_asked_in_its_own_network(inside, server, empty):
    """One with a server and one without, side by side with a pod that is probed from the node."""
    async with serving(replying(OK)) as port:
        run(inside, "with", "s1", server, readiness={**KINDS["http"], **INSIDE})
        run(inside, "without", "s2", empty, readiness={**KINDS["http"], **INSIDE})
        inside.run(pod_with("node", readiness=http(port, failureThreshold=1)))

        def outcomes(uid: str) -> dict[str, int]:
            return inside.manager.describe(uid)["probes"][0]["outcomes"]

        def entered() -> int:
            return inside.manager.describe()["loop"]["networks_entered"]

        expected = {"with": "success", "without": "failure", "node": "success"}
        await eventually(lambda: all(outcomes(uid)[each] > 20 for uid, each in expected.items()))
        entered_before = entered()
        succeeded = {uid: outcomes(uid)["success"] for uid in expected}
        failed = {uid: outcomes(uid)["failure"] for uid in expected}
        entered_after = entered()
    assert failed["with"] == failed["node"] == succeeded["without"] == 0
    # A probe that comes due before its network is open ends with an error and enters none. One probe of
    # each pod may be under way.
    assert entered_before - 2 <= succeeded["with"] + failed["without"] <= entered_after


async def test_a_removed_sandbox_releases_its_network(inside, server):
    held = len(list(Path("/proc/self/fd").iterdir()))
    run(
        inside,
        "u1",
        "s1",
        server,
        readiness={**KINDS["http"], **INSIDE},
        liveness={**KINDS["http"], **INSIDE},
    )
    await eventually(lambda: inside.manager.is_ready("u1", "app"))
    inside.manager.update_pod("u1", sandbox="")
    errors = inside.probe("liveness")["outcomes"]["error"]
    await eventually(lambda: inside.probe("liveness")["outcomes"]["error"] > errors + 2)
    assert "network is not known" in inside.probe("liveness")["output"]
    assert inside.manager.failed("u1", "app", "c1") == "", "no container is restarted for it"
    await eventually(lambda: len(list(Path("/proc/self/fd").iterdir())) <= held)
    inside.networks.pids["s2"] = server
    inside.manager.update_pod("u1", sandbox="s2")
    good = inside.probe("liveness")["outcomes"]["success"]
    await eventually(lambda: inside.probe("liveness")["outcomes"]["success"] > good + 2)


async def test_a_missing_network_namespace_is_searched_again(inside, server):
    run(inside, "u1", "s1", None, readiness={**KINDS["http"], **INSIDE})
    await eventually(lambda: inside.networks.refused >= 2)
    (decision,) = inside.manager._decisions.after(0)
    assert (decision.kind, decision.outcome, decision.uid) == ("probes", "failed", "u1")
    inside.networks.pids["s1"] = server
    await eventually(lambda: inside.manager.is_ready("u1", "app"))
    assert inside.manager._decisions.after(decision.number)[0].outcome == "inside"


async def test_a_pod_of_the_nodes_network_is_probed_as_ever(inside):
    async with serving(replying(OK)) as port:
        pod = pod_with("u1", readiness={**http(port), **INSIDE})
        pod.spec.host_network = True
        inside.run(pod)
        await eventually(lambda: inside.manager.is_ready("u1", "app"))
    assert inside.probe("readiness")["network"] == "node"
    assert inside.manager.describe()["loop"]["networks_entered"] == 0


async def test_the_configuration_speaks_for_pods_that_do_not(server):
    networks = Networks()
    rig: Any = Rig(ProbesSection(network="pod"), networks=networks)
    rig.networks = networks
    await rig.manager.start()
    try:
        run(rig, "inside", "s1", server, readiness=dict(KINDS["http"]))
        async with serving(replying(OK)) as port:
            rig.run(pod_with("outside", readiness={**http(port), "ms": {"network": "node"}}))
            await eventually(lambda: all(rig.manager.is_ready(uid, "app") for uid in ("inside", "outside")))
    finally:
        await rig.manager.stop()


@pytest.mark.parametrize(
    ("info", "error", "words"),
    [
        ("", Refused, "doesn't say"),
        ("[1]", Refused, "doesn't say"),
        ('{"pid": "x"}', Refused, "doesn't say"),
        ('{"pid": 0}', InvalidInput, "no network namespace of its own"),
        ({"pid": 1}, Refused, "has exited"),
        ({"pid": 1, "runtimeSpec": {"linux": {"namespaces": [{"type": "network"}]}}}, Refused, "has exited"),
        ("path", InvalidInput, "is not a namespace"),
    ],
)
def test_which_network_answers_of_a_runtime_are_accepted(
    tmp_path: Path, info: Any, error: type[Exception], words: str
):
    if info == "path":
        (tmp_path / "net").touch()
        info = {
            "runtimeSpec": {"linux": {"namespaces": [{"type": "network", "path": str(tmp_path / "net")}]}}
        }
    with pytest.raises(error, match=words):
        open_network("0123abcd", info if isinstance(info, str) else json.dumps(info))


def test_the_nodes_own_network_is_nobodys():
    own = Path("/proc/self/cgroup").read_text().strip()[-1:]
    with pytest.raises(InvalidInput, match="no network namespace of its own"):
        open_network(own, json.dumps({"pid": os.getpid()}))


def test_a_process_that_has_ended():
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(OSError, match="No such"):
        open_network("0123abcd", json.dumps({"pid": process.pid}))


async def test_a_silent_name_server_holds_no_thread_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default threads write the agent's files; on two processors there are six."""
    answer, asked = threading.Event(), threading.Semaphore(0)
    numeric = socket.getaddrinfo

    def resolve(host: str, *args: Any, flags: int = 0, **how: Any) -> Any:
        if flags:
            return numeric(host, *args, flags=flags, **how)
        asked.release()
        answer.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    probes = [asyncio.create_task(connect("name.invalid", 80, NETWORK_OF_THE_NODE)) for _ in range(60)]
    try:
        for _ in range(MAX_RESOLVERS):
            await asyncio.to_thread(asked.acquire)
        assert not any(probe.done() for probe in probes)
    finally:
        answer.set()
    failures = await asyncio.gather(*probes, return_exceptions=True)
    assert all(isinstance(failure, socket.gaierror) for failure in failures)
