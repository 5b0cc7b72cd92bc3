"""Sessions through the port: byte for byte to the runtime's URL, and nothing left of those that break off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest

from engine.api.duration import Duration
from engine.api.errors import NotFound
from engine.server.port import server as listener
from engine.testing.apiserver import Authority
from tests.ports import free_port
from tests.server.secured import Secured, SecuredView, Shown, configured
from tests.server.served import parse
from tests.waiting import eventually

UPGRADE = (
    "POST {} HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    "Authorization: Bearer t\r\n\r\n"
)
AGREED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\nX-A: b\r\n\r\nhello"
)
EXEC = "/exec/default/p/c?command=a%20b&command=c&output=1&error=1&tty=1"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Backend:
    """Serve as a runtime's streaming server: answer each upgrade with `answer`, then call `talk`."""

    def __init__(self) -> None:
        self.answer = AGREED
        self.url = ""
        self.heads: list[str] = []
        self.open = 0
        self.talk: Talk = echo

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(self.answer)
            await self.talk(reader, writer)
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.transport.abort()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    made = Backend()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/exec/ticket"
    yield made
    server.close()
    await eventually(lambda: not made.open)


@pytest.fixture
async def port(tmp_path: Any, backend: Any) -> AsyncIterator[Secured]:
    authority = Authority(tmp_path / "authority")
    config = configured()
    config.authentication.anonymous.enabled, config.authentication.webhook.enabled = True, False
    config.authorization.mode = "AlwaysAllow"
    view = SecuredView(config=config, logs=tmp_path)
    view.serving_certificate = Shown(authority.issue("n1", alternatives="IP:127.0.0.1"))
    view.runtime.url = backend.url
    own = listener.SecurePort(view, "127.0.0.1", number := free_port())
    await own.start()
    yield Secured(view, own, number, authority)
    await own.stop()


async def test_bytes_flow_in_both_directions_and_the_users_token_is_not_forwarded(
    port: Secured, backend: Backend
) -> None:
    reader, writer = await port.connect()
    writer.write(UPGRADE.format(EXEC).encode() + b"early ")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101")
    assert b"x-a: b" in head.lower()
    writer.write(b"and late " * 100_000)
    expected = b"hello" + b"early " + b"and late " * 100_000
    assert await reader.readexactly(len(expected)) == expected
    writer.transport.abort()
    assert backend.heads[0].startswith("POST /exec/ticket HTTP/1.1\r\n")
    assert "bearer" not in backend.heads[0].lower()
    (asked,) = port.view.runtime.asked
    assert asked == (
        "exec_url",
        {"": ("id", ["a b", "c"]), "stdin": False, "stdout": True, "stderr": False, "tty": True},
    )


async def test_a_token_among_the_subprotocols_is_not_forwarded_either(
    port: Secured, backend: Backend
) -> None:
    secret = "base64url.bearer.authorization.k8s.io.c2VjcmV0"
    for named, kept in ((f"v4.channel.k8s.io, {secret}", "v4.channel.k8s.io"), (secret, "")):
        asked = UPGRADE.format(EXEC).replace("SPDY/3.1", f"websocket\r\nSec-WebSocket-Protocol: {named}")
        reader, writer = await port.connect()
        writer.write(asked.encode())
        await reader.readuntil(b"hello")
        writer.transport.abort()
        head = backend.heads[-1].lower()
        assert "c2vjcmv0" not in head
        assert head.count("sec-websocket-protocol") == bool(kept)
        assert kept in head


async def test_a_slow_reader_gets_the_whole_end(port: Secured, backend: Backend) -> None:
    """Neither of a page nor of a session."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 6_000_000)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    backend.talk = talk
    port.view.summary = {"blob": "x" * 6_000_000}
    page = "GET /stats/summary HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n"
    readers = []
    for asked in (page, UPGRADE.format(EXEC)):
        reader, writer = await port.connect()
        writer.write(asked.encode())
        readers.append((reader, writer))
    await asyncio.sleep(3)  # so long that a connection which is only waited for a moment would be gone
    for reader, writer in readers:
        assert (await reader.read()).count(b"x" * 1000) == 6000
        writer.transport.abort()


async def test_the_end_of_the_runtimes_stream_ends_the_session_after_all_data(
    port: Secured, backend: Backend
) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 3_000_000)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    backend.talk = talk
    data = await port.raw(UPGRADE.format(EXEC).encode())
    assert data.partition(b"\r\n\r\n")[2] == b"hello" + b"x" * 3_000_000


async def test_a_refusal_of_the_runtime_is_returned(port: Secured, backend: Backend) -> None:
    backend.answer = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nspent"
    answer = parse(await port.raw(UPGRADE.format(EXEC).encode()))
    assert (answer.status, answer.body) == (404, b"spent")


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [
        ("/exec/default/p/c?command=a", 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("/exec/default/p/c?error=1&tty=1", 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("/exec/default/q/c?command=a&output=1", 404, "pod does not exist"),
        ("/exec/default/p/d?command=a&output=1", 500, 'container not found ("d")'),
        ("/attach/default/p/d?output=1", 500, "container d not found in pod p_default"),
        ("/attach/default/p/other/c?output=1", 500, "pod p_default not found"),
        ("/portForward/default/p/other", 404, "pod not found"),
        ("/portForward/default", 404, "404: Page Not Found"),
    ],
)
async def test_messages_of_refusals(port: Secured, target: str, status: int, words: str) -> None:
    answer = parse(await port.raw(UPGRADE.format(target).encode()))
    assert (answer.status, answer.body.decode()) == (status, words)


@pytest.mark.parametrize("number", ["0", "65536", "00000099999999999", "8" * 5000, "-1", "²"])
async def test_a_websocket_names_ports_that_are_some(port: Secured, number: str) -> None:
    target = f"/portForward/default/p?port=80,{quote(number)}"
    asked = UPGRADE.format(target).replace("SPDY/3.1", "websocket")
    assert parse(await port.raw(asked.encode())).status == 400
    assert not port.view.runtime.asked


async def test_an_unknown_container_is_not_found(port: Secured) -> None:
    port.view.runtime.error = NotFound("no such container")
    assert parse(await port.raw(UPGRADE.format(EXEC).encode())).status == 404


async def test_without_an_upgrade_nothing_is_requested(port: Secured) -> None:
    answer = await port.ask("POST", EXEC)
    assert (answer.status, answer.body) == (500, b"Upgrade request required\n")
    assert not port.view.runtime.asked


async def test_a_session_in_which_nothing_moves_ends(port: Secured) -> None:
    port.view.config.streaming_connection_idle_timeout = Duration(0.3)
    data = await port.raw(UPGRADE.format(EXEC).encode())
    assert data.endswith(b"hello")


async def test_clients_that_vanish_leave_nothing(port: Secured, backend: Backend) -> None:
    for _ in range(10):
        sessions = [await port.connect() for _ in range(20)]
        for reader, writer in sessions:
            writer.write(UPGRADE.format(EXEC).encode())
            await reader.readuntil(b"hello")
        for _, writer in sessions:
            writer.transport.abort()
    await eventually(lambda: not backend.open and not port.port._connections)
    assert not port.port._sessions
    assert not port.port._limiter.idle


async def test_sessions_are_bounded_and_new_clients_do_not_end_them(
    port: Secured, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_SESSIONS", 2)
    sessions = [await port.connect() for _ in range(2)]
    for reader, writer in sessions:
        writer.write(UPGRADE.format(EXEC).encode())
        await reader.readuntil(b"hello")
    assert parse(await port.raw(UPGRADE.format(EXEC).encode())).status == 429
    new_clients = [await asyncio.open_connection("127.0.0.1", port.number) for _ in range(200)]
    assert (await port.ask("GET", "/healthz")).status == 200
    for reader, writer in sessions:
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
    for _, writer in [*new_clients, *sessions]:
        writer.transport.abort()


async def test_a_log_is_followed_until_its_reader_disconnects(port: Secured, tmp_path: Any) -> None:
    (tmp_path / "p").mkdir()
    log = tmp_path / "p" / "0.log"
    log.write_bytes(b"2024-05-01T10:00:00Z stdout F here\n")
    target = "/containerLogs/default/p/c"
    answer = await port.ask("GET", target)
    assert (answer.status, answer.body) == (200, b"here\n")
    readers = [await port.connect() for _ in range(30)]
    for reader, writer in readers:
        writer.write(f"GET {target}?follow=true HTTP/1.1\r\nHost: n\r\n\r\n".encode())
        await reader.readuntil(b"here\n")
    with log.open("ab") as more:
        more.write(b"2024-05-01T10:00:00Z stdout F more\n")
    for reader, _ in readers:
        await reader.readuntil(b"more\n")
    for _, writer in readers:
        writer.transport.abort()
    await eventually(lambda: not port.port._connections)
    for query, status in (("tailLines=-1", 422), ("tailLines=x", 400)):
        assert (await port.ask("GET", f"{target}?{query}")).status == status
    for path in ("/containerLogs/default/q/c", "/containerLogs/default/p/d"):
        assert (await port.ask("GET", path)).status == 404


async def test_one_stream_of_a_log_needs_its_feature_gate(port: Secured, tmp_path: Any) -> None:
    (tmp_path / "p").mkdir()
    lines = b"2024-05-01T10:00:00Z stdout F out\n2024-05-01T10:00:00Z stderr F err\n"
    (tmp_path / "p" / "0.log").write_bytes(lines)
    target = "/containerLogs/default/p/c"
    assert (await port.ask("GET", f"{target}?stream=All")).body == b"out\nerr\n"
    answer = await port.ask("GET", f"{target}?stream=Stderr")
    assert answer.status == 400
    assert b"PodLogsQuerySplitStreams" in answer.body
    port.view.config.feature_gates = {"PodLogsQuerySplitStreams": True}
    assert (await port.ask("GET", f"{target}?stream=Stderr")).body == b"err\n"


async def test_logs_are_queried_only_where_the_configuration_allows_it(port: Secured) -> None:
    assert (await port.ask("GET", "/logs/?query=%20")).status == 200
    port.view.config.enable_system_log_query = True
    answer = await port.ask("GET", "/logs/?query=%20")
    assert (answer.status, answer.body) == (400, b'query: Invalid value: [" "]: query cannot be empty\n')
    assert (await port.ask("GET", "/logs/")).status == 200
    answer = await port.ask("GET", "/logs/?query=no-such-service")
    assert (answer.status, answer.body) == (200, b"\nlog not found for no-such-service\n")
    port.view.config.enable_system_log_handler = False
    assert (await port.ask("GET", "/logs/?query=no-such-service")).status == 405


async def test_no_path_leads_out_of_the_systems_logs(
    port: Secured, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.server.port import system_logs

    top = tmp_path / "log"
    (top / "pods").mkdir(parents=True)
    (top / "a & b").write_text("inside")
    (top / "link").symlink_to("/etc/passwd")
    (tmp_path / "secret").write_text("outside")
    monkeypatch.setattr(system_logs.system_logs, "__defaults__", (top,))
    page = (await port.ask("GET", "/logs/")).body.decode()
    assert '<a href="a%20%26%20b">a &amp; b</a>' in page
    assert "pods/" in page
    assert (await port.ask("GET", "/logs/a%20%26%20b")).body == b"inside"
    for path in ("link", "../secret", "pods/../../secret", "%2e%2e/secret", "none", "a%20%26%20b/x", "x%00y"):
        answer = await port.ask("GET", f"/logs/{path}")
        assert answer.status in (403, 404), path
        assert b"outside" not in answer.body
        assert b"root:" not in answer.body
