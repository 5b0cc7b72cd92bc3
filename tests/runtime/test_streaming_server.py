"""The streaming server against clients that are slow, hostile, strict or gone."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from engine.api.errors import Refused
from engine.host.connection_limiter import ConnectionLimiter
from engine.runtime.objects.records import READY, RUNNING, RuntimeContainer, Sandbox
from engine.runtime.streaming import connections, remote_command, server
from engine.runtime.streaming.protocol import CommandTicket, PortForwardTicket
from engine.runtime.streaming.server import StreamingServer
from engine.transport.stream_protocols import STDOUT
from engine.wire import cri_v1_pb2 as cri
from tests.runtime.stream_clients import Refusal, Spdy, WebSocket, exit_code, masked, upgraded
from tests.waiting import PATIENCE, eventually

V4 = "v4.channel.k8s.io"
SANDBOX = Sandbox("s", cri.PodSandboxConfig(), 0, state=READY)
CONTAINER = RuntimeContainer("c", SANDBOX, cri.ContainerConfig(), 0, state=RUNNING)


class Echo:
    """Stand in for a process that prints its input, or all of `output`, and exits when its input ends."""

    def __init__(self, output: bytes = b"") -> None:
        self.closed = False
        self.lines: asyncio.Queue[bytes] = asyncio.Queue(1)
        self.sizes: list[tuple[int, int]] = []
        self._ended = asyncio.Event()
        self._output = output

    async def read(self) -> tuple[int, bytes] | int:
        if self._output:
            piece, self._output = self._output[:65536], self._output[65536:]
            return (STDOUT, piece) if piece else 0
        line = await self.lines.get()
        return (STDOUT, line) if line else 4

    async def write(self, data: bytes) -> None:
        await self.lines.put(data)

    def end_input(self) -> None:
        asyncio.ensure_future(self.lines.put(b""))  # noqa: RUF006

    async def resize(self, columns: int, rows: int) -> None:
        self.sizes.append((columns, rows))

    def close(self) -> None:
        self.closed = True


class Made:
    """Run a streaming server, and hold the processes that it opened for its clients."""

    def __init__(self) -> None:
        self.server = StreamingServer(self)
        self.processes: list[Echo] = []
        self.output = b""

    async def open_command(self, ticket: CommandTicket) -> Echo:
        self.processes.append(Echo(self.output))
        return self.processes[-1]

    open_attachment = open_command

    async def connect(self, sandbox: Sandbox, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise Refused("nobody is there", subject=f"port {port}")

    def url(self, *, stdin: bool = True, tty: bool = False) -> str:
        return self.server.url(CommandTicket(CONTAINER, ["cat"], stdin, True, False, tty))


@pytest_asyncio.fixture
async def made() -> AsyncIterator[Made]:
    made = Made()
    await made.server.start()
    yield made
    await made.server.stop()
    assert all(process.closed for process in made.processes)


async def raw(made: Made, data: bytes) -> bytes:
    """Send bytes to the streaming server, and return its answer when it has closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
    writer.write(data)
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def head(made: Made, *lines: str, url: str = "") -> bytes:
    return "\r\n".join(
        [f"GET {urlsplit(url or made.url()).path} HTTP/1.1", "Host: x", *lines, "", ""]
    ).encode()


SPDY = ("Connection: Upgrade", "Upgrade: SPDY/3.1")
SOCKET = ("Connection: Upgrade", "Upgrade: websocket")


@pytest.mark.parametrize(
    ("lines", "status", "word"),
    [
        ((), 400, "unable to upgrade"),
        (("Upgrade: SPDY/3.1",), 400, "unable to upgrade"),
        (("Connection: Upgrade", "Upgrade: h2c"), 400, "unable to upgrade"),
        ((*SPDY, "X-Stream-Protocol-Version: v9.channel.k8s.io"), 403, "v9.channel.k8s.io"),
        (SOCKET, 400, "Sec-WebSocket-Key"),
        ((*SOCKET, "Sec-WebSocket-Key: abc"), 426, "version 13"),
        (
            (*SOCKET, "Sec-WebSocket-Key: a", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: x"),
            403,
            "client supports x",
        ),
        ((*SPDY, "Content-Length: 5"), 400, ""),
        (("X: " + "x" * 20_000,), 400, ""),
        (("no colon",), 400, ""),
    ],
)
async def test_bad_requests_get_a_clear_message(
    made: Made, lines: tuple[str, ...], status: int, word: str
) -> None:
    answer = (await raw(made, head(made, *lines) + b"12345")).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert word in answer


@pytest.mark.parametrize(
    "path",
    ["/", "/exec/", "/exec/wrong", "/attach/TOKEN", "/portforward/TOKEN", "/exec/TOKEN/more", "/../etc"],
)
async def test_only_the_exact_url_leads_anywhere(made: Made, path: str) -> None:
    url = "http://x" + path.replace("TOKEN", made.url().rpartition("/")[2])
    assert (await raw(made, head(made, *SPDY, url=url))).startswith(b"HTTP/1.1 404 ")


async def test_other_methods_are_refused_before_the_ticket_is_used(made: Made) -> None:
    url = made.url()
    answer = await raw(made, head(made, *SPDY, url=url).replace(b"GET", b"PUT", 1))
    assert answer.startswith(b"HTTP/1.1 405 ")
    async with await Spdy.connect(url, V4):
        pass


async def test_it_listens_on_loopback_alone(made: Made) -> None:
    assert made.server._server is not None
    assert [socket.getsockname()[0] for socket in made.server._server.sockets] == ["127.0.0.1"]
    assert made.url().startswith(f"http://127.0.0.1:{made.server.port}/exec/")


async def test_slow_heads_and_missing_streams_run_out_of_time(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_TIME", 0.1)
    monkeypatch.setattr(remote_command, "CREATION_TIME", 0.1)
    assert await raw(made, b"GET /exec") == b""
    async with await Spdy.connect(made.url(), V4) as client:
        error = await client.open(streamtype="error")
        assert b"did not open its streams stdin, stdout" in await client.all_of(error)
    assert made.processes == []


async def test_strange_streams_are_reset(made: Made) -> None:
    async with await Spdy.connect(made.url(), V4) as client:
        for headers in ({"streamtype": "telepathy"}, {}, {"x": "y"}):
            assert await client.open(**headers) in client.reset
        assert await client.open(streamtype="stdin") in client.replied
        assert await client.open(streamtype="stdin") in client.reset


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        b"GET / HTTP/1.1\r\n\r\n" * 10,
        struct.pack("!HHI", 0x8003, 1, 0xFFFFFF),
        struct.pack("!HHI", 0x8003, 6, 2) + b"ab",
    ],
)
async def test_noise_instead_of_spdy_ends_the_session(made: Made, data: bytes) -> None:
    async with await Spdy.connect(made.url(), V4) as client:
        for name in ("error", "stdin", "stdout"):
            await client.open(streamtype=name)
        await eventually(lambda: made.processes)
        client.writer.write(data)
        if data[0] & 0x80:
            await client.until(lambda: client.going_away or client.closed)
        else:
            await client.close()  # the header of a data frame of half a gigabyte, without its data
        await eventually(lambda: made.processes[0].closed)


async def test_truncated_frames_and_a_vanished_client_end_the_process(made: Made) -> None:
    client = await Spdy.connect(made.url(), V4)
    for name in ("error", "stdin", "stdout"):
        await client.open(streamtype=name)
    await eventually(lambda: made.processes)
    client.writer.write(struct.pack("!II", 3, 1000) + b"half")
    await client.writer.drain()
    client.writer.transport.abort()
    await eventually(lambda: made.processes[0].closed)
    await client.close()


async def test_a_dead_client_is_noticed_while_its_output_is_not_read(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE", 0.05)
    client = await Spdy.connect(made.url(), V4)
    ids = [await client.open(streamtype=name) for name in ("error", "stdin", "stdout")]
    client.reading.clear()
    for _ in range(40):  # nobody reads the echo, so the server stops reading
        client.send(ids[1], b"x" * 65536)
    await asyncio.sleep(0.1)
    client.writer.transport.abort()
    await eventually(lambda: made.processes[0].closed)
    client.reading.set()
    await client.close()


async def test_sessions_in_which_nothing_moves_end(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE", 0.05)
    monkeypatch.setattr(server, "IDLE_TIME", 0.2)
    async with await Spdy.connect(made.url(), V4) as client:
        for name in ("error", "stdin", "stdout"):
            await client.open(streamtype=name)
        await client.until(lambda: client.closed)


async def test_pings_are_answered_and_sizes_arrive(made: Made) -> None:
    async with await Spdy.connect(made.url(tty=True), V4) as client:
        ids = [await client.open(streamtype=name) for name in ("error", "stdin", "stdout", "resize")]
        client.control(6, struct.pack("!I", 77))
        await client.until(lambda: 77 in client.pongs)
        client.send(ids[3], b'{"Width":80,"Height":24}')
        await eventually(lambda: made.processes and made.processes[0].sizes == [(80, 24)])
        client.send(ids[1], b"x", last=True)
        assert exit_code(await client.all_of(ids[0])) == 4


async def test_a_strict_client_gets_what_its_windows_allow(made: Made) -> None:
    made.output = b"x" * 300_000
    async with await Spdy.connect(made.url(stdin=False), V4) as client:
        client.control(4, struct.pack("!III", 1, 7, 1000))
        error = await client.open(streamtype="error")
        out = await client.open(streamtype="stdout")
        await client.until(lambda: len(client.received[out]) == 1000)
        client.control(9, struct.pack("!II", out, 100_000))
        await client.until(lambda: len(client.received[out]) == 65_536)  # the connection's window
        client.control(9, struct.pack("!II", 0, 1_000_000))
        await client.until(lambda: len(client.received[out]) == 101_000)
        client.control(9, struct.pack("!II", out, 1_000_000))
        await client.until(lambda: len(client.received[out]) == 300_000)
        assert error not in client.finished


async def test_consumed_data_restores_flow_control_credit(made: Made) -> None:
    async with await Spdy.connect(made.url(), V4) as client:
        ids = [await client.open(streamtype=name) for name in ("error", "stdin", "stdout")]
        client.send(ids[1], b"x" * 65536)
        await client.until(lambda: client.windows[0] >= 32768 and client.windows[ids[1]] >= 32768)


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"\x82\x01x", 1002), (b"\x82\xff" + struct.pack("!Q", 1 << 40), 1009), (masked(b"x", 0), 1002)],
    ids=["unmasked", "too-long", "continues-nothing"],
)
async def test_noise_instead_of_websocket_frames_gets_a_reason(made: Made, data: bytes, code: int) -> None:
    client = await WebSocket.connect(made.url(), V4, early=data)
    while True:
        kind, payload = await client.frame()
        if kind == 8:
            break
    assert struct.unpack("!H", payload[:2]) == (code,)
    await client.close()


async def test_websocket_says_hello_answers_pings_and_ignores_other_channels(made: Made) -> None:
    client = await WebSocket.connect(made.url(), V4)
    assert await client.frame() == (2, b"\1")
    client.send(b"ping!", 9)
    assert await client.frame() == (10, b"ping!")
    for other in (b"", b"\1not mine", b"\x63", b"\xff\0"):
        client.send(other)
    client.send(b"\0hello")
    assert await client.frame() == (2, b"\1hello")
    await client.close()


async def test_too_many_sessions_are_rejected(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_SESSIONS", 1)
    async with await Spdy.connect(made.url(), V4):
        with pytest.raises(Refusal) as refusal:
            await Spdy.connect(made.url(), V4)
        assert refusal.value.status == 503


async def test_forwarding_checks_ports_and_pairs_streams(made: Made) -> None:
    url = made.server.url(PortForwardTicket(SANDBOX, []))
    async with await Spdy.connect(url, "portforward.k8s.io") as client:
        for port in ("0", "65536", "-1", "x", ""):
            assert await client.open(streamtype="data", port=port, requestid="1") in client.reset
        error = await client.open(streamtype="error", port="80")
        assert await client.open(streamtype="data", port="80") in client.replied  # without a name: the next
        assert b"nobody is there" in await client.all_of(error)


async def test_stopping_closes_what_is_open(made: Made) -> None:
    client = await Spdy.connect(made.url(), V4)
    for name in ("error", "stdin", "stdout"):
        await client.open(streamtype=name)
    await eventually(lambda: made.processes)
    await made.server.stop()
    await client.until(lambda: client.closed)
    await client.close()
    with pytest.raises(OSError):
        await upgraded(made.url(), "GET", [])


async def test_a_port_in_use_is_named(made: Made) -> None:
    other = StreamingServer(made, port=made.server.port)
    with pytest.raises(Refused, match=f"streaming port {made.server.port}"):
        await other.start()


async def test_unwilling_clients_are_left_after_a_moment(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has read everything and keeps the connection."""
    monkeypatch.setattr(connections, "LEAVE_TIME", 0.1)
    async with await Spdy.connect(made.url(), V4) as client:
        ids = [await client.open(streamtype=name) for name in ("error", "stdin", "stdout")]
        client.send(ids[1], b"", last=True)
        assert exit_code(await client.all_of(ids[0])) == 4
        await client.until(lambda: client.closed)


async def test_forwarding_by_channels_needs_ports(made: Made) -> None:
    with pytest.raises(Refusal, match="need ports") as refusal:
        await WebSocket.connect(made.server.url(PortForwardTicket(SANDBOX, [])), V4)
    assert refusal.value.status == 400


@pytest.mark.parametrize("sent", [b"", b"POST /exec/x HTT"], ids=["silent", "half-a-head"])
async def test_unauthenticated_clients_block_no_others(
    made: Made, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.server._limiter = ConnectionLimiter(20)
    clients = []
    try:
        for _ in range(100):
            clients.append(await asyncio.open_connection("127.0.0.1", made.server.port))
            clients[-1][1].write(sent)
        client = await Spdy.connect(made.url(stdin=False))
        assert len(made.server._connections) <= 22
        await client.close()
    finally:
        for _, writer in clients:
            writer.transport.abort()


async def test_undecodable_bytes_are_refused_without_a_log_line(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    for header in (b"Upgrade: \xff\xfe", b"Sec-WebSocket-Protocol: \xff", b"Connection: \xc3"):
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        path = urlsplit(made.url()).path.encode()
        writer.write(b"GET %b HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n%b\r\n\r\n" % (path, header))
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        writer.close()
    assert caplog.messages == []


async def test_failures_are_logged_once_and_counted(
    made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    made.server._clock = lambda: now[0]

    def fail(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(server, "_negotiate", fail)

    async def knock() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.server.port)
        writer.write(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % urlsplit(made.url()).path.encode())
        assert await reader.read() == b""
        writer.close()

    made.server._tickets._clock = lambda: now[0]
    for _ in range(5):
        await knock()
    assert len(caplog.records) == 1
    now[0] += server.QUIET
    await knock()
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == ["1", "6"]
