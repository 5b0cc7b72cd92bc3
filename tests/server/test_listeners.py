"""Listening sockets: which peers they accept, what a bad peer can do, and which files stay behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, Refused
from engine.api.kubengine_config import KubengineConfiguration, ServerSection
from engine.server import HttpServer, listeners
from engine.server.http import connection
from engine.server.http import scheduling as turns
from engine.server.http.tcp import bind_tcp
from tests.ports import free_port
from tests.server.served import View, parse
from tests.waiting import PATIENCE, eventually

GET = b"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def alive(served: Any) -> bool:
    return bool((await served.get("/healthz")).status == 200)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 4 + b"\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n", 400),
        (b"GET /healthz?" + b"a&" * 99 + b" HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n", 400),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: n\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: n\r\n" + b"X: y\r\n" * 5_000 + b"\r\n", 431),
        (b"POST /pods HTTP/1.1\r\nHost: n\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 100_000, 413),
        (b"POST / HTTP/1.1\r\nHost: n\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
    ids=[
        "no-http", "tls", "no-host", "no-path", "bad-url", "many-query-fields",
        "long-target", "many-headers", "large-body", "negative-length", "bad-chunk",
    ],
)  # fmt: skip
async def test_hostile_requests_are_answered_and_survived(serve: Any, sent: bytes, status: int) -> None:
    served = await serve(View())
    assert parse(await served.raw(sent)).status == status
    assert await alive(served)


async def test_a_slow_request_and_an_idle_peer_are_ended(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = connection.Connection.__init__.__kwdefaults__
    assert usual is not None
    short = {**usual, "limits": connection.ConnectionLimits(request_deadline=0.2, idle_deadline=0.3)}
    monkeypatch.setattr(connection.Connection.__init__, "__kwdefaults__", short)
    served = await serve(View())
    assert parse(await served.raw(b"GET /healthz HT")).status == 408
    assert await served.raw(b"") == b""


async def test_a_peer_that_does_not_read_is_dropped(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WRITE_DEADLINE", 0.2)
    view = View(summary={"blob": "x" * 30_000_000})
    served = await serve(view)
    reader, writer = await served.connect()
    writer.write(b"GET /stats/summary HTTP/1.1\r\nHost: n\r\n\r\n")
    await writer.drain()
    assert await alive(served)
    await eventually(lambda: not any(listener.connections for listener in served.server._listeners))
    received = 0
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 20):
            received += len(data)
    assert received < 30_000_000
    writer.close()


async def test_keep_alive_and_pipelining(serve: Any) -> None:
    served = await serve(View())
    data = await served.raw(GET * 2 + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert data.count(b"HTTP/1.1 200") == 3


async def test_a_crowd_at_one_listener_leaves_the_others_open(serve: Any) -> None:
    served = await serve(View())
    crowd = [await served.connect() for _ in range(listeners.MAX_CONNECTIONS)]
    await asyncio.sleep(0.05)
    assert await alive(served), "at the crowded one too"
    assert (await served.ask("GET", "/healthz", unix=True)).status == 200
    assert (await served.ask("GET", "/healthz", port=served.view.config.healthz_port)).status == 200
    for _, other in crowd:
        other.close()


@pytest.mark.parametrize("listener", ["port", "health", "unix"])
@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /heal", GET, b"POST /x HTTP/1.1\r\nHost: n\r\nContent-Length: 9\r\n\r\n",
     b"GET /stats/summary HTTP/1.1\r\nHost: n\r\n\r\n" * 3],
    ids=["silent", "half-a-head", "idle", "no-body", "deaf"],
)  # fmt: skip
async def test_health_checks_pass_despite_many_clients(
    serve: Any, listener: str, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that send nothing, stop half-way, stay after their answer, or do not read it."""
    monkeypatch.setattr(listeners, "MAX_CONNECTIONS", 40)
    served = await serve(View(summary={"blob": "x" * 1_000_000}))
    where = {"unix": True} if listener == "unix" else {}
    if listener == "health":
        where = {"port": served.view.config.healthz_port}
    crowd = []
    try:
        for _ in range(60):
            crowd.append(await served.connect(**where))
            crowd[-1][1].write(sent)
            if len(crowd) % 20 == 0:
                assert (await served.ask("GET", "/healthz", **where)).status == 200
        assert (await served.ask("GET", "/healthz", **where)).status == 200
        held = sum(len(each.connections) for each in served.server._listeners)
        assert held <= listeners.MAX_CONNECTIONS + 1
    finally:
        for _, writer in crowd:
            writer.transport.abort()


async def test_work_that_hangs_leaves_health_answered(serve: Any) -> None:
    view, released = View(), asyncio.Event()

    async def hang() -> Any:
        await released.wait()
        return {}

    view.stats_summary = hang  # type: ignore[method-assign]
    served = await serve(view)
    asked = [asyncio.ensure_future(served.get("/stats/summary")) for _ in range(3 * turns.MAX_AT_WORK)]
    done, waiting = await asyncio.wait(asked, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 2 * turns.MAX_AT_WORK:
        more, waiting = await asyncio.wait(waiting, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        assert more
        done |= more
    assert {task.result().status for task in done} == {503}
    assert await alive(served)
    released.set()
    assert [(await task).status for task in waiting] == [200] * turns.MAX_AT_WORK


async def test_the_socket_is_private_and_removed_with_the_server(serve: Any) -> None:
    served = await serve(View())
    assert stat.S_IMODE(served.socket_path.stat().st_mode) == 0o600
    held = await served.connect(unix=True)
    held[1].write(GET)
    assert b"200" in await held[0].readuntil(b"\r\n\r\nok")
    await served.server.stop()
    await served.server.stop()
    assert not served.socket_path.exists()
    assert await held[0].read() == b""
    held[1].close()
    with pytest.raises(OSError, match="Connect call failed"):
        await served.connect()


async def test_a_socket_left_by_a_dead_agent_is_replaced_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "kubengine.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = HttpServer(View(), socket_path=path)
    await server.start()
    second = HttpServer(View(), socket_path=path)
    with pytest.raises(Refused, match="another process serves"):
        await second.start()
    await second.stop()
    assert path.exists()
    await server.stop()
    path.write_text("precious")
    with pytest.raises(Refused, match="not a socket"):
        await server.start()
    assert path.read_text() == "precious"


async def test_a_taken_port_is_named_and_nothing_stays_open(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        view = View(config=KubeletConfiguration(read_only_port=port, healthz_port=free_port()))
        server = HttpServer(view, socket_path=tmp_path / "s")
        with pytest.raises(Refused, match=rf"readOnlyPort 127\.0\.0\.1:{port}: Address already in use"):
            await server.start()
    assert not (tmp_path / "s").exists()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", view.config.healthz_port)) != 0


async def test_disabled_endpoints_stay_disabled(tmp_path: Path) -> None:
    before = open_descriptors()
    config = KubeletConfiguration(enable_server=False, healthz_port=0)
    server = HttpServer(View(config=config), socket_path=None)
    await server.start()
    assert open_descriptors() == before
    await server.stop()


async def test_the_kubelets_address_does_not_open_the_port(tmp_path: Path) -> None:
    view = View(config=KubeletConfiguration(address="0.0.0.0", read_only_port=free_port(), healthz_port=0))
    server = HttpServer(view, socket_path=None)
    await server.start()
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.2", view.config.read_only_port)) != 0
    await server.stop()
    view.kubengine_config = KubengineConfiguration(server=ServerSection(read_only_address="0.0.0.0"))
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.2", view.config.read_only_port)
    writer.write(GET)
    assert b"200" in await reader.readline()
    writer.close()
    await server.stop()


@pytest.mark.parametrize("address", ["localhost", "300.1.1.1", ""])
async def test_a_bad_address_is_named(address: str) -> None:
    view = View(kubengine_config=KubengineConfiguration(server=ServerSection(read_only_address=address)))
    with pytest.raises(InvalidInput, match="readOnlyPort"):
        await HttpServer(view, socket_path=None).start()


async def test_expect_continue(serve: Any) -> None:
    served = await serve(View())
    reader, writer = await served.connect()
    writer.write(b"POST /x HTTP/1.1\r\nHost: n\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert b"100" in await reader.readuntil(b"\r\n\r\n")
    writer.write(b"{}")
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"405" in head
    assert json.loads(await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0])))
    writer.close()


async def test_small_writes_do_not_wait_for_acknowledgements() -> None:
    """Connections of a port have Nagle's algorithm turned off."""
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    with bind_tcp("127.0.0.1", 0, "port") as bound:
        with socket.create_connection(bound.getsockname()):
            server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), sock=bound)
            writer = await accepted
            peer = writer.get_extra_info("socket")
            assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            writer.close()
            await writer.wait_closed()
        server.close()
