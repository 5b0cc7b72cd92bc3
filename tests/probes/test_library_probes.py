"""Probes off the native loop: HTTPS with any certificate, targets by name, and a node that was starved."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.probes.probed_pods import OK, http, pod_with, replying, serving
from tests.waiting import eventually


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a key and a self-signed certificate for another host name."""
    path = tmp_path_factory.mktemp("tls") / "wrong.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=wrong.example"
    subprocess.run([*make.split(), "-keyout", path, "-out", f"{path}.crt"], check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def https(port: int, path: str = "/", **more):
    return http(port, path, get={"scheme": "HTTPS"}, **more)


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (OK, "success", ""),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "failure", "statuscode: 500"),
        (
            b"HTTP/1.1 302 F\r\nLocation: https://10.1.1.1/\r\nContent-Length: 0\r\n\r\n",
            "warning",
            "redirects",
        ),
        (
            b"HTTP/1.1 302 F\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
            "failure",
            "stopped after 10 redirects",
        ),
        (b"garbage\r\n\r\n", "failure", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "error", "unexpected EOF"),
    ],
    ids=["ok", "500", "foreign-redirect", "endless-redirect", "garbage", "short-body"],
)
async def test_https(rig, tls, answer, outcome, words):
    async with serving(replying(answer), ssl=tls) as port:
        rig.run(pod_with(readiness=https(port, failureThreshold=1)))
        await eventually(lambda: rig.probe("readiness")["outcomes"][outcome])
        await eventually(lambda: words in rig.probe("readiness")["output"])


async def test_https_times_out(rig, tls):
    async def silent(reader, writer):
        await asyncio.sleep(60)

    async with serving(silent, ssl=tls) as port:
        rig.run(pod_with(liveness=https(port, ms={"timeoutMilliseconds": 200}, failureThreshold=1)))
        await eventually(lambda: rig.manager.failed("u1", "app", "c1") == "liveness")
        assert "Client.Timeout exceeded while awaiting headers" in rig.probe("liveness")["output"]


async def test_cleartext_may_redirect_to_tls(rig, tls):
    requests: list[bytes] = []
    async with serving(replying(OK, requests=requests), ssl=tls) as safe:
        away = f"HTTP/1.1 301 M\r\nLocation: https://127.0.0.1:{safe}/s\r\nContent-Length: 0\r\n\r\n".encode()
        async with serving(replying(away)) as port:
            rig.run(pod_with(readiness=http(port)))
            await eventually(lambda: rig.manager.is_ready("u1", "app"))
    assert requests[0].startswith(b"GET /s HTTP/1.1\r\n")


async def test_a_host_by_name(rig):
    async with serving(replying(OK)) as port:
        rig.run(pod_with("a", readiness=http(port, get={"host": "localhost"})), ip="127.0.0.9")
        rig.run(pod_with("b", readiness={"tcpSocket": {"port": port, "host": "localhost"}}), ip="127.0.0.9")
        await eventually(lambda: rig.manager.is_ready("a", "app") and rig.manager.is_ready("b", "app"))


async def test_library_probes_are_bounded(rig, tls):
    """40 slow HTTPS probes with 32 slots: all come to their turn."""
    async with serving(replying(OK, pause=0.05), ssl=tls) as port:
        for n in range(40):
            rig.run(pod_with(f"u{n}", readiness=https(port)))
        await eventually(lambda: all(rig.manager.is_ready(f"u{n}", "app") for n in range(40)))


async def test_an_exec_probe_without_a_runtime_errs(rig):
    rig.run(pod_with(liveness={"exec": {"command": ["true"]}, "failureThreshold": 1}))
    await eventually(lambda: rig.probe("liveness")["outcomes"]["error"])
    assert rig.manager.failed("u1", "app", "c1") == ""


AGENT = """
import asyncio, json, sys
from engine.probes.manager import ProbeManager
from tests.contexts import node_context
from tests.probes.probed_pods import http, pod_with

async def main():
    manager = ProbeManager(node_context(), on_result=lambda result: None, jitter=lambda: 0.0)
    await manager.start()
    times = {"periodMilliseconds": 100, "timeoutMilliseconds": 500}
    pod = pod_with(liveness=http(int(sys.argv[1]), ms=times))
    manager.add_pod(pod)
    manager.update_pod(pod.uid, pod_ip="127.0.0.1")
    manager.update_container(pod.uid, "app", container_id="c", state="running", started_at=1)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        probe = manager.describe()["probes"][0]
        outcomes = probe["outcomes"]
        print(json.dumps([outcomes["success"], outcomes["failure"], probe["late"]]), flush=True)
    await manager.stop()

asyncio.run(main())
"""


async def test_a_starved_node_is_late_and_fails_no_probe():
    """The agent is stopped for longer than the time-out while an answer is on its way, three times."""
    async with serving(replying(b"", OK, pause=0.3)) as port:
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", AGENT, str(port),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert agent.stdin is not None
        assert agent.stdout is not None

        async def ask() -> list[int]:
            agent.stdin.write(b"\n")
            return json.loads(await asyncio.wait_for(agent.stdout.readline(), 60))

        try:
            while (await ask())[0] < 2:  # noqa: ASYNC110 - another process is asked
                await asyncio.sleep(0.05)
            for _ in range(3):
                os.kill(agent.pid, signal.SIGSTOP)
                await asyncio.sleep(1.0)
                os.kill(agent.pid, signal.SIGCONT)
                await asyncio.sleep(0.7)
            successes, failures, late = await ask()
        finally:
            os.kill(agent.pid, signal.SIGCONT)
            agent.stdin.close()
            await agent.wait()
    assert failures == 0
    assert late >= 3
    assert successes > 4
