"""WebSockets at the node's port, with runtimes that speak SPDY: the embedded one and containerd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from engine.server.port.server import SecurePort
from engine.testing.apiserver import Authority
from tests.ports import free_port
from tests.runtime.pods import Pods
from tests.runtime.stream_clients import WebSocket, exit_code, tunnelled
from tests.runtime.test_streaming import attach_url, exec_url, forward_url, get_page, idle, serving
from tests.server.secured import Secured, SecuredView, Shown, configured
from tests.waiting import PATIENCE

V5 = "v5.channel.k8s.io"
TUNNEL = "SPDY/3.1+portforward.k8s.io"
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
HANDSHAKE = (
    "GET {} HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {}\r\n\r\n"
)


class Port:
    """Open WebSockets on the node's port, and read its counters."""

    def __init__(self, secured: Secured) -> None:
        self._secured = secured

    async def open(self, url: str, path: str, protocol: str = V5, **query: str) -> WebSocket:
        """Open a WebSocket whose session the runtime serves at `url`, and check the handshake."""
        self._secured.view.runtime.url = url
        reader, writer = await self._secured.connect()
        writer.write(HANDSHAKE.format(f"{path}?{urlencode(query)}", protocol).encode())
        async with asyncio.timeout(PATIENCE):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith("http/1.1 101"), head
        assert "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in head
        assert f"sec-websocket-protocol: {protocol.lower()}" in head
        return WebSocket(reader, writer, protocol)

    async def exec(self, url: str, *, stdin: bool = False, tty: bool = False) -> WebSocket:
        wanted = (
            {"output": "1", "error": "1"} | ({"input": "1"} if stdin else {}) | ({"tty": "1"} if tty else {})
        )
        return await self.open(url, "/exec/default/p/c", command="x", **wanted)

    def counted(self, subresource: str) -> float:
        metric = self._secured.view.registry.metrics["kubelet_websocket_streaming_requests_total"]
        return float(metric.values[(subresource,)])  # type: ignore[attr-defined]


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    authority = Authority(tmp_path / "authority")
    config = configured()
    config.authentication.anonymous.enabled, config.authentication.webhook.enabled = True, False
    config.authorization.mode = "AlwaysAllow"
    view = SecuredView(config=config, logs=tmp_path)
    view.serving_certificate = Shown(authority.issue("n1", alternatives="IP:127.0.0.1"))
    own = SecurePort(view, "127.0.0.1", number := free_port())
    await own.start()
    yield Port(Secured(view, own, number, authority))
    await own.stop()


async def test_output_comes_by_channel_and_the_exit_code_last(pods: Pods, port: Port) -> None:
    container = await idle(pods)
    client = await port.exec(await exec_url(pods, container, "sh", "-c", "echo out; echo err >&2; exit 5"))
    found = await client.channels()
    assert (found[STDOUT], found[STDERR]) == (b"out\n", b"err\n")
    assert exit_code(found[ERROR]) == 5
    assert list(found)[-1] == ERROR
    await client.close()
    assert port.counted("exec") == 1


async def test_closing_the_input_ends_a_command_that_reads_it(pods: Pods, port: Port) -> None:
    container = await idle(pods)
    client = await port.exec(await exec_url(pods, container, "cat", stdin=True), stdin=True)
    sent = b"0123456789abcdef" * 40_000
    for start in range(0, len(sent), 32_768):
        client.send(bytes([STDIN]) + sent[start : start + 32_768])
    client.send(bytes([CLOSE, STDIN]))
    found = await client.channels()
    assert found[STDOUT] == sent
    assert exit_code(found[ERROR]) == 0
    await client.close()


async def test_a_terminal_follows_the_size_of_its_client(pods: Pods, port: Port) -> None:
    container = await idle(pods)
    url = await exec_url(pods, container, "sh", "-c", "read line; stty size", stdin=True, tty=True)
    client = await port.exec(url, stdin=True, tty=True)
    client.send(bytes([RESIZE]) + json.dumps({"Width": 77, "Height": 33}).encode())
    await asyncio.sleep(0.5)  # nothing shows that the runtime has applied the size
    client.send(bytes([STDIN]) + b"\n")
    found = await client.channels()
    assert b"33 77" in found[STDOUT]
    await client.close()


async def test_a_program_that_does_not_exist_is_a_status(pods: Pods, port: Port) -> None:
    client = await port.exec(await exec_url(pods, await idle(pods), "no-such-program"))
    status = json.loads((await client.channels())[ERROR])
    assert status["status"] == "Failure"
    assert "no-such-program" in status["message"]
    await client.close()


async def test_attach_reaches_the_first_process(pods: Pods, port: Port) -> None:
    container = await pods.start(
        await pods.pod(), "sh", "-c", "read line; echo got $line; sleep 1000", stdin=True
    )
    client = await port.open(
        await attach_url(pods, container), "/attach/default/p/c", input="1", output="1", error="1"
    )
    client.send(bytes([STDIN]) + b"hello\n")
    kind, data = await client.frame()
    assert (kind, data) == (2, bytes([STDOUT]) + b"got hello\n")
    await client.close()
    assert port.counted("attach") == 1


async def test_a_client_that_breaks_the_protocol_is_closed_with_the_reason(pods: Pods, port: Port) -> None:
    client = await port.exec(await exec_url(pods, await idle(pods), "cat", stdin=True), stdin=True)
    client.writer.write(b"\x82\x05hello")  # a client must mask its frames
    kind = 2
    while kind != 8:
        kind, data = await client.frame()
    assert int.from_bytes(data[:2]) == 1002
    await client.close()


async def test_a_tunnel_carries_spdy_in_messages(pods: Pods, port: Port) -> None:
    sandbox, _ = await serving(pods)
    url = await forward_url(pods, sandbox)
    async with tunnelled(await port.open(url, "/portForward/default/p", TUNNEL)) as client:
        assert (await get_page(client, 0)).endswith(b"page\n")
    assert port.counted("portforward") == 1
