"""A peer that never stops sending gets a share of the event loop only, at every listener and every client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import KubengineError, Refused
from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.cluster.lease import LeaseController
from engine.host.child import run_child
from engine.server.port.server import SecurePort
from engine.testing.apiserver import ApiServer, Authority
from engine.transport.grpc_channel import CallFailed, Channel
from engine.wire import deviceplugin_v1beta1_pb2 as devices
from tests.endless import (
    EndlessPeer,
    from_listener,
    listening_at,
    to_path,
    to_port,
    to_tls_port,
    wrapped,
)
from tests.ports import free_port
from tests.server.secured import Secured, SecuredView, Shown, configured
from tests.server.served import Served, View
from tests.turns import TurnGauge, take_turns
from tests.waiting import eventually

MOST_CALLS = 60_000
"""In one turn of the event loop, of all kinds of functions: some 10 ms. A handshake by itself has 300."""
MOST_TURNS = 400
"""Of the loop, until another port's `/healthz` has answered and the lease is renewed."""
PEERS = 6
ENOUGH = 200_000
"""Bytes that a peer has sent before it is measured."""

HEAD = b"GET / HTTP/1.1\r\nHost:n\r\n"
POST = b"POST /pods HTTP/1.1\r\nHost:n\r\nTransfer-Encoding: chunked\r\n\r\n"
HTTP = {
    "pipelined": (b"", HEAD + b"\r\n"),
    "health": (b"", b"GET /healthz HTTP/1.1\r\nHost:n\r\n\r\n"),
    "chunks": (b"", POST + b"1\r\nx\r\n" * 9000 + b"0\r\n\r\n"),
    "heads": (b"", HEAD + b"a:b\r\n" * 255 + b"\r\n"),
    "one-head": (HEAD, b"a:b\r\n"),
    "no-http": (b"", b"\0\r\n"),
}


def frame(kind: int, flags: int, payload: bytes = b"", stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


SETTINGS, GRPC_HEAD = frame(4, 0), frame(1, 4, b"\x88", 1)
HTTP2 = {
    "settings": (SETTINGS, SETTINGS),
    "pings": (SETTINGS, frame(6, 0, bytes(8))),
    "windows": (SETTINGS, frame(8, 0, bytes(7) + b"\1", 0)[:13]),
    "heads": (SETTINGS, frame(1, 4, b"\x88", 1)),
    "small-data": (SETTINGS + GRPC_HEAD, frame(0, 0, b"\0", 1)),
    "empty-data": (SETTINGS + GRPC_HEAD, frame(0, 0, b"", 1)),
    "messages": (SETTINGS + GRPC_HEAD, frame(0, 0, bytes(5) * 3000, 1)),
    "lines": (SETTINGS + GRPC_HEAD, frame(0, 0, b'{"type":"BOOKMARK","object":{"metadata":{}}}\n' * 300, 1)),
    "continuations": (SETTINGS + frame(1, 0, b"\x88", 1), frame(9, 0, b"", 1)),
}


@pytest.fixture
async def lease(tmp_path: Path) -> AsyncIterator[LeaseController]:
    async with ApiServer(tmp_path / "server") as server:
        config = load_kubeconfig(server.kubeconfig("system:node:n1"))
        client = ApiClient(config, Credentials(config, clock=time.time), user_agent="test")
        controller = LeaseController(
            client, "n1", node_uid=lambda: "u", seconds=40, clock=time.time, lost=lambda: None
        )
        assert await controller.renew()
        yield controller
        client.close()


@pytest.fixture
async def served(serve: Any) -> Served:
    started: Served = await serve(View())
    return started


CheckTurns = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
def check_turns(served: Served, lease: LeaseController) -> CheckTurns:
    """Return a function that waits until the peers are `busy`, then checks how many turns the loop needs.

    Within these, a health check must be answered and the lease renewed.
    """

    async def check(busy: Callable[[], bool]) -> None:
        await eventually(busy)
        with TurnGauge() as gauge:
            assert (await served.ask("GET", "/healthz", port=served.view.config.healthz_port)).body == b"ok"
            answered = gauge.turns
            assert await lease.renew()
            renewed = gauge.turns
            await take_turns(50)
        assert gauge.most < MOST_CALLS
        assert answered < MOST_TURNS
        assert renewed < 20 * MOST_TURNS, "the server answers from this loop too"

    return check


def all_busy(peers: list[EndlessPeer]) -> Callable[[], bool]:
    return lambda: all(peer.sent > ENOUGH for peer in peers)


@pytest.mark.parametrize("kind", HTTP)
@pytest.mark.parametrize("listener", ["read-only", "socket"])
async def test_listeners_without_authentication(
    served: Served, check_turns: CheckTurns, listener: str, kind: str
) -> None:
    begin, data = HTTP[kind]
    open = to_path(served.socket_path) if listener == "socket" else to_port(served.view.config.read_only_port)
    async with contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(EndlessPeer(open, data, begin=begin)) for _ in range(PEERS)]
        await check_turns(all_busy(peers))


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Secured]:
    authority = Authority(tmp_path / "authority")
    config = configured()
    config.authentication.webhook.enabled = False
    config.authentication.x509.client_ca_file = str(authority.certificate)
    config.authorization.mode = "AlwaysAllow"
    view = SecuredView(config=config, logs=tmp_path)
    view.serving_certificate = Shown(authority.issue("n1", alternatives="IP:127.0.0.1"))
    own = SecurePort(view, "127.0.0.1", number := free_port())
    await own.start()
    yield Secured(view, own, number, authority)
    await own.stop()


@pytest.mark.parametrize("kind", HTTP)
async def test_the_port(
    port: Secured, check_turns: CheckTurns, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    begin, data = HTTP[kind]
    async with contextlib.AsyncExitStack() as stack:
        opener = to_tls_port(port.number)
        peers = [
            await stack.enter_async_context(EndlessPeer(opener, data, begin=begin)) for _ in range(PEERS)
        ]
        await check_turns(lambda: all(peer.sent for peer in peers))
    assert "socket.send() raised exception" not in caplog.text


async def test_unknown_clients_have_one_answer_each(port: Secured) -> None:
    """What follows a 401 is not read; nothing is logged of it."""
    assert (await port.raw(HEAD + b"\r\n" + HEAD + b"\r\n")).count(b"HTTP/1.1 401 ") == 1


async def test_a_session_between_two_that_never_stop(port: Secured, check_turns: CheckTurns) -> None:
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port.view.runtime.url = f"http://127.0.0.1:{listener.getsockname()[1]}/exec/x"
        agreed = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
        pair = port.authority.issue("user")
        context = ssl.create_default_context(cafile=str(port.authority.certificate))
        context.load_cert_chain(pair.certificate, pair.key)
        request = (
            b"POST /exec/default/p/c?input=1&output=1&command=x HTTP/1.1\r\nHost: n\r\n"
            b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
        )

        def user() -> socket.socket:
            return wrapped(to_port(port.number)(), context, server_hostname="127.0.0.1")

        peers = [
            await stack.enter_async_context(EndlessPeer(from_listener(listener), b"y" * 65536, begin=agreed)),
            await stack.enter_async_context(EndlessPeer(user, b"x" * 65536, begin=request)),
        ]
        await check_turns(all_busy(peers))


@pytest.mark.parametrize("kind", HTTP2)
@pytest.mark.parametrize("streams", [False, True], ids=["unary", "streaming"])
async def test_servers_of_plugins_and_the_runtime(
    tmp_path: Path, check_turns: CheckTurns, kind: str, streams: bool
) -> None:
    """A device plugin, storage driver or runtime at the other end of a channel."""
    begin, data = HTTP2[kind]
    channel = Channel(str(tmp_path / "s"), limit=16 << 20)

    async def follow() -> None:
        while True:
            with contextlib.suppress(CallFailed):
                if streams:
                    async for message in channel.messages("/t/x", b""):
                        devices.ListAndWatchResponse.FromString(message)
                else:
                    await channel.unary("/t/x", b"", 60)
            await asyncio.sleep(0.01)

    with listening_at(tmp_path / "s") as listener:
        async with EndlessPeer(from_listener(listener), data, begin=begin) as peer:
            following = asyncio.create_task(follow())
            await check_turns(all_busy([peer]))
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        channel.close()


@pytest.mark.parametrize("kind", HTTP2)
@pytest.mark.parametrize("watches", [False, True], ids=["get", "watch"])
async def test_an_api_server(tmp_path: Path, check_turns: CheckTurns, kind: str, watches: bool) -> None:
    begin, data = HTTP2[kind]
    async with ApiServer(tmp_path / "hostile") as named:
        kubeconfig = named.kubeconfig("system:node:n1")
        pair = named.authority.issue("server", alternatives="IP:127.0.0.1")
        address = ("127.0.0.1", int(named.url.rpartition(":")[2]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.set_alpn_protocols(["h2"])
    config = load_kubeconfig(kubeconfig)
    client = ApiClient(config, Credentials(config, clock=time.time), user_agent="test", timeout=5.0)

    async def follow() -> None:
        while True:
            with contextlib.suppress(KubengineError):
                if watches:
                    async with client.lines("/api/v1/pods", {"watch": "1"}) as lines:
                        async for line in lines:
                            client.decode(line, dict)
                else:
                    await client.get("/api/v1/pods", dict)
            await asyncio.sleep(0.01)

    with socket.create_server(address) as listener:
        async with EndlessPeer(from_listener(listener, context), data, begin=begin) as peer:
            following = asyncio.create_task(follow())
            await check_turns(all_busy([peer]))
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        client.close()


async def test_a_credential_plugin(check_turns: CheckTurns) -> None:
    """One that prints without end is killed at its bound, again and again."""
    ended = 0
    command = ["cat", "/dev/zero"]

    async def follow() -> None:
        nonlocal ended
        while True:
            with pytest.raises(Refused, match="output exceeds"):
                await run_child(command, seconds=60, most=1 << 20, subject="plugin")
            ended += 1

    following = asyncio.create_task(follow())
    await check_turns(lambda: ended > 0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
