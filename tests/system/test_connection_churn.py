"""The memory of a real agent after thousands of connections that strangers open and drop.

`KUBENGINE_CONNECTIONS` says how many of each kind.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.guarded_host import COMMAND
from tests.ports import free_port
from tests.waiting import wait_until

CONNECTIONS = int(os.environ.get("KUBENGINE_CONNECTIONS", "400"))
WARM_UP = 200
MOST_GROWTH = 12 << 10
"""KiB. Each connection that waits for the garbage collector would hold about 38."""
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
REQUEST = b"GET /pods HTTP/1.1\r\nHost: n\r\n\r\n"


@dataclass
class Agent:
    pid: int
    secure: int
    read_only: int

    @property
    def rss(self) -> int:
        """Resident memory in KiB."""
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None, "the agent has ended"
        return int(found[1])

    @property
    def connections(self) -> int:
        return sum(map(is_socket, Path(f"/proc/{self.pid}/fd").iterdir()))


def is_socket(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith("socket:")
    except FileNotFoundError:  # closed since the directory was listed
        return False


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    directory = tmp_path_factory.mktemp("a")
    (directory / "manifests").mkdir()
    secure, read_only, healthz = free_port(), free_port(), free_port()
    settings = {"readOnlyPort": read_only, "healthzPort": healthz}
    head = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    webhooks = {"authentication": {"webhook": {"enabled": False}}, "authorization": {"mode": "AlwaysAllow"}}
    (directory / "config.yaml").write_text(yaml.safe_dump(head | settings | webhooks))
    command = [
        *COMMAND, "run", "--config", directory / "config.yaml", "--manifests", directory / "manifests",
        "--root-dir", directory / "root", "--runtime", "hollow", f"--port={secure}",
    ]  # fmt: skip
    with (directory / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            for port in (secure, read_only):
                wait_until(lambda port=port: process.poll() is not None or listens(port))
            assert process.poll() is None, (directory / "log").read_text()
            yield Agent(process.pid, secure, read_only)
        finally:
            process.terminate()
            process.wait()


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def says(data: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(data)


def garbage(connection: socket.socket) -> None:
    connection.sendall(REQUEST)
    connection.recv(1024)


def leaves_after_the_hello(connection: socket.socket) -> None:
    """Send a whole ClientHello and go without an answer to the server's."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = _unverified().wrap_bio(incoming, outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    connection.sendall(outgoing.read())
    connection.recv(1024)


def handshake(data: bytes, *, answered: bool = False) -> Callable[[socket.socket], None]:
    def talk(connection: socket.socket) -> None:
        with _unverified().wrap_socket(connection) as secured:
            if data:
                secured.sendall(data)
            if answered:
                while secured.recv(65536):
                    pass

    return talk


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


TLS = {
    "closed": says(b""),
    "reset": resets,
    "garbage": garbage,
    "half-a-hello": says(HALF_A_HELLO),
    "left-after-the-hello": leaves_after_the_hello,
    "left-after-the-handshake": handshake(b""),
    "half-a-request": handshake(REQUEST[:20]),
    "refused": handshake(REQUEST, answered=True),
}
PLAIN = {"closed": says(b""), "reset": resets, "half-a-request": says(REQUEST[:20]), "deaf": says(REQUEST)}


def churn(port: int, talk: Callable[[socket.socket], None], times: int) -> None:
    for _ in range(times):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 30) as connection:
            talk(connection)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TLS)
def test_the_secure_port(agent: Agent, kind: str) -> None:
    hold_memory(agent, agent.secure, TLS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLAIN)
def test_the_read_only_port(agent: Agent, kind: str) -> None:
    hold_memory(agent, agent.read_only, PLAIN[kind])


def hold_memory(agent: Agent, port: int, talk: Callable[[socket.socket], None]) -> None:
    """Churn connections; the first ones grow pools and caches that stay."""
    churn(port, talk, WARM_UP)
    open_before, before = agent.connections, agent.rss
    churn(port, talk, CONNECTIONS)
    wait_until(lambda: agent.connections <= open_before)
    assert agent.rss - before < MOST_GROWTH
