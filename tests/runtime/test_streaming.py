"""Exec, Attach and PortForward over SPDY and WebSockets, on the embedded runtime and on containerd alike."""

from __future__ import annotations

import asyncio
import json
import struct

import pytest

from engine.api.errors import KubengineError
from engine.wire import cri_v1_pb2 as cri
from tests.runtime.pods import Pods
from tests.runtime.stream_clients import Refusal, Spdy, WebSocket, exit_code, tunnelled
from tests.waiting import eventually

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
COMMAND = (V4, "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
FORWARD = "portforward.k8s.io"


async def exec_url(
    pods: Pods, container: str, *command: str, stdin: bool = False, tty: bool = False, stdout: bool = True
) -> str:
    request = cri.ExecRequest(
        container_id=container, cmd=command, stdin=stdin, tty=tty, stdout=stdout, stderr=stdout and not tty
    )
    return (await pods.client._runtime("Exec", request, cri.ExecResponse)).url


async def attach_url(pods: Pods, container: str, *, stdin: bool = True, tty: bool = False) -> str:
    request = cri.AttachRequest(container_id=container, stdin=stdin, tty=tty, stdout=True, stderr=not tty)
    return (await pods.client._runtime("Attach", request, cri.AttachResponse)).url


async def forward_url(pods: Pods, sandbox: str, *ports: int) -> str:
    request = cri.PortForwardRequest(pod_sandbox_id=sandbox, port=ports)
    return (await pods.client._runtime("PortForward", request, cri.PortForwardResponse)).url


async def idle(pods: Pods, **fields: object) -> str:
    return await pods.start(await pods.pod(), "sleep", "1000", **fields)


async def channels(client: Spdy, *names: str) -> dict[str, int]:
    return {name: await client.open(streamtype=name) for name in names}


async def test_exec_answers_output_and_exit_code(pods: Pods) -> None:
    container = await idle(pods)
    url = await exec_url(pods, container, "sh", "-c", "echo out; echo err >&2; exit 5")
    async with await Spdy.connect(url, *COMMAND) as client:
        assert client.version == V4
        ids = await channels(client, "error", "stdout", "stderr")
        assert await client.all_of(ids["stdout"]) == b"out\n"
        assert await client.all_of(ids["stderr"]) == b"err\n"
        assert exit_code(await client.all_of(ids["error"])) == 5


async def test_exec_of_a_success_and_of_no_program(pods: Pods) -> None:
    container = await idle(pods)
    async with await Spdy.connect(await exec_url(pods, container, "true"), *COMMAND) as client:
        ids = await channels(client, "error", "stdout", "stderr")
        assert exit_code(await client.all_of(ids["error"])) == 0
    async with await Spdy.connect(await exec_url(pods, container, "no-such-program"), *COMMAND) as client:
        ids = await channels(client, "error", "stdout", "stderr")
        status = json.loads(await client.all_of(ids["error"]))
        assert status["status"] == "Failure"
        assert "no-such-program" in status["message"]


async def test_exec_of_old_protocols_reports_errors_as_text(pods: Pods) -> None:
    container = await idle(pods)
    url = await exec_url(pods, container, "sh", "-c", "exit 5")
    async with await Spdy.connect(url, "v2.channel.k8s.io") as client:
        assert client.version == "v2.channel.k8s.io"
        ids = await channels(client, "error", "stdout", "stderr")
        assert b"5" in await client.all_of(ids["error"])
    async with await Spdy.connect(await exec_url(pods, container, "true"), "v2.channel.k8s.io") as client:
        ids = await channels(client, "error", "stdout", "stderr")
        assert await client.all_of(ids["error"]) == b""


async def test_exec_passes_standard_input_until_its_end(pods: Pods) -> None:
    container = await idle(pods)
    async with await Spdy.connect(await exec_url(pods, container, "cat", stdin=True), *COMMAND) as client:
        ids = await channels(client, "error", "stdin", "stdout", "stderr")
        client.send(ids["stdin"], b"one\n")
        await client.until(lambda: client.received[ids["stdout"]] == b"one\n")
        client.send(ids["stdin"], b"two\n", last=True)
        assert await client.all_of(ids["stdout"]) == b"one\ntwo\n"
        assert exit_code(await client.all_of(ids["error"])) == 0


async def test_exec_of_megabytes_loses_nothing(pods: Pods) -> None:
    container = await idle(pods)
    async with await Spdy.connect(await exec_url(pods, container, "cat", stdin=True), *COMMAND) as client:
        ids = await channels(client, "error", "stdin", "stdout", "stderr")
        block = bytes(range(256)) * 128
        for _ in range(96):
            client.send(ids["stdin"], block)
            await client.writer.drain()
        client.send(ids["stdin"], b"", last=True)
        assert await client.all_of(ids["stdout"]) == block * 96


async def test_exec_on_a_terminal(pods: Pods) -> None:
    container = await idle(pods)
    script = "test -t 0 && tty; echo $TERM; read line; stty size; echo err >&2; exit 3"
    url = await exec_url(pods, container, "sh", "-c", script, stdin=True, tty=True)
    async with await Spdy.connect(url, *COMMAND) as client:
        ids = await channels(client, "error", "stdin", "stdout", "resize")
        await client.until(lambda: b"xterm\r\n" in client.received[ids["stdout"]])
        client.send(ids["resize"], b'{"Width":121,"Height":43}\n')
        if pods.kind == "containerd":  # which answers no order between the two
            await asyncio.sleep(1)
        client.send(ids["stdin"], b"go\n")
        out = await client.all_of(ids["stdout"])
        lines = out.replace(b"\r\n", b"\n").decode().splitlines()
        assert lines[0].startswith("/dev/pts/")
        assert "43 121" in lines
        assert lines[-1] == "err"
        assert exit_code(await client.all_of(ids["error"])) == 3


async def test_exec_over_websockets(pods: Pods) -> None:
    container = await idle(pods)
    url = await exec_url(pods, container, "sh", "-c", "cat; echo err >&2; exit 7", stdin=True)
    client = await WebSocket.connect(url, V4)
    assert client.version == V4
    client.send(b"\0hello\n")
    if pods.kind == "embedded":
        client.send(b"\0wor", final=False)
        client.send(b"ld\n", 0)
    out = b""
    while out != (b"hello\nworld\n" if pods.kind == "embedded" else b"hello\n"):
        _, data = await client.frame()
        out += data[1:]
    await client.close()


async def test_exec_over_a_websocket_answers_its_code(pods: Pods) -> None:
    container = await idle(pods)
    url = await exec_url(pods, container, "sh", "-c", "echo out; echo err >&2; exit 7")
    client = await WebSocket.connect(url, V4)
    found = await client.channels()
    assert (found[1], found[2], exit_code(found[3])) == (b"out\n", b"err\n", 7)
    await client.close()


@pytest.mark.root
async def test_websocket_v5_can_end_the_input(embedded: Pods) -> None:
    container = await idle(embedded)
    client = await WebSocket.connect(await exec_url(embedded, container, "cat", stdin=True), V5, V4)
    assert client.version == V5
    client.send(b"\0hello")
    client.send(b"\xff\0")
    found = await client.channels()
    assert (found[1], exit_code(found[3])) == (b"hello", 0)
    await client.close()


async def test_a_command_ends_with_its_client(pods: Pods) -> None:
    container = await idle(pods)
    url = await exec_url(pods, container, "sh", "-c", "echo started; cat; sleep 4321", stdin=True)
    client = await Spdy.connect(url, *COMMAND)
    ids = await channels(client, "error", "stdin", "stdout", "stderr")
    await client.until(lambda: client.received[ids["stdout"]] == b"started\n")
    await client.close()

    async def gone() -> bool:
        answer = await pods.client.exec_sync(container, ["ps", "-o", "args"], 10)
        return b"sleep 4321" not in answer.stdout and b"cat" not in answer.stdout.split(b"\n")

    if pods.kind == "embedded":  # containerd 1.6 does not stop it
        await eventually(gone)


@pytest.mark.root
async def test_a_slow_client_slows_the_command_and_not_the_memory(embedded: Pods) -> None:
    container = await idle(embedded)
    script = "i=0; while [ $i -lt 64 ]; do head -c 1048576 /dev/zero; i=$((i+1)); echo $i > /tmp/at; done"
    client = await Spdy.connect(await exec_url(embedded, container, "sh", "-c", script), *COMMAND)
    ids = await channels(client, "error", "stdout", "stderr")
    client.reading.clear()

    async def written() -> bytes:
        return (await embedded.client.exec_sync(container, ["cat", "/tmp/at"], 10)).stdout

    seen, same = b"", 0
    while same < 5:  # output stopped
        await asyncio.sleep(0.2)
        now = await written()
        same, seen = (same + 1 if now and now == seen else 0), now
    assert int(seen) < 32
    client.reading.set()
    assert len(await client.all_of(ids["stdout"])) == 64 << 20
    assert exit_code(await client.all_of(ids["error"])) == 0
    await client.close()


async def test_attach_reaches_a_shell_with_stdin_once(pods: Pods) -> None:
    container = await pods.start(await pods.pod(), "/bin/sh", stdin=True, stdin_once=True)
    async with await Spdy.connect(await attach_url(pods, container), *COMMAND) as client:
        ids = await channels(client, "error", "stdin", "stdout", "stderr")
        client.send(ids["stdin"], b"echo hello; echo oops >&2\n")
        await client.until(lambda: client.received[ids["stdout"]] == b"hello\n")
        await client.until(lambda: client.received[ids["stderr"]] == b"oops\n")
        client.send(ids["stdin"], b"exit 9\n", last=True)
        assert exit_code(await client.all_of(ids["error"])) == 0
    status = await pods.ended(container)
    assert status.exit_code == 9
    assert {(stream, text) for stream, _, text in pods.log(status)} == {
        ("stdout", "hello"),
        ("stderr", "oops"),
    }


async def test_end_of_input_ends_a_shell_with_stdin_once(pods: Pods) -> None:
    container = await pods.start(await pods.pod(), "/bin/sh", stdin=True, stdin_once=True)
    async with await Spdy.connect(await attach_url(pods, container), *COMMAND) as client:
        ids = await channels(client, "error", "stdin", "stdout", "stderr")
        client.send(ids["stdin"], b"echo hello\n", last=True)
        assert await client.all_of(ids["stdout"]) == b"hello\n"
    assert (await pods.ended(container)).exit_code == 0


async def test_attach_again_where_the_input_stays_open(pods: Pods) -> None:
    container = await pods.start(await pods.pod(), "/bin/sh", stdin=True)
    for word in (b"one", b"two"):
        async with await Spdy.connect(await attach_url(pods, container), *COMMAND) as client:
            ids = await channels(client, "error", "stdin", "stdout", "stderr")
            client.send(ids["stdin"], b"echo " + word + b"\n")
            await client.until(lambda: client.received[ids["stdout"]] == word + b"\n")  # noqa: B023
    assert (await pods.status(container)).state == cri.CONTAINER_RUNNING


async def test_attach_to_a_terminal(pods: Pods) -> None:
    container = await pods.start(await pods.pod(), "/bin/sh", stdin=True, tty=True)
    async with await Spdy.connect(await attach_url(pods, container, tty=True), *COMMAND) as client:
        ids = await channels(client, "error", "stdin", "stdout", "resize")
        client.send(ids["resize"], b'{"Width":99,"Height":33}')
        if pods.kind == "containerd":
            await asyncio.sleep(1)
        client.send(ids["stdin"], b"tty; stty size\n")
        await client.until(lambda: b"33 99\r\n" in client.received[ids["stdout"]])
        assert b"/dev/pts/0\r\n" in client.received[ids["stdout"]]
        client.send(ids["stdin"], b"exit\n")
        await client.all_of(ids["error"])
    status = await pods.ended(container)
    assert "33 99" in [text.rstrip("\r") for stream, _, text in pods.log(status) if stream == "stdout"]


@pytest.mark.root
async def test_console_of_a_terminal_container(embedded: Pods) -> None:
    status = await embedded.ended(await embedded.shell("echo through > /dev/console", tty=True))
    assert [text.rstrip("\r") for _, _, text in embedded.log(status)] == ["through"]


async def test_two_clients_see_the_same_output(pods: Pods) -> None:
    container = await pods.start(await pods.pod(), "/bin/sh", stdin=True)
    first = await Spdy.connect(await attach_url(pods, container), *COMMAND)
    ids = await channels(first, "error", "stdin", "stdout", "stderr")
    second = await Spdy.connect(await attach_url(pods, container, stdin=False), *COMMAND)
    others = await channels(second, "error", "stdout", "stderr")
    number = 0
    while b"both" not in second.received[others["stdout"]]:  # it may not be attached from the first byte
        number += 1
        first.send(ids["stdin"], b"echo both\n")
        await first.until(lambda: first.received[ids["stdout"]].count(b"both\n") >= number)  # noqa: B023
    await first.close()
    await second.close()


async def serving(pods: Pods, **fields: object) -> tuple[str, str]:
    """Start a pod whose web server answers `page` on port 8080.

    Return the ids of its sandbox and container.
    """
    sandbox = await pods.pod(**fields)
    script = "mkdir /tmp/w; echo page > /tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w"
    container = await pods.shell(script, sandbox)

    async def listening() -> bool:
        answer = await pods.client.exec_sync(container, ["wget", "-qO-", "http://127.0.0.1:8080/"], 10)
        return answer.stdout == b"page\n"

    await eventually(listening)
    return sandbox, container


async def get_page(client: Spdy, request: int) -> bytes:
    names = {"port": "8080", "requestID": str(request)}
    error = await client.open(streamtype="error", **names)
    data = await client.open(streamtype="data", **names)
    client.send(error, b"", last=True)
    client.send(data, b"GET / HTTP/1.0\r\n\r\n")
    page = await client.all_of(data)
    assert await client.all_of(error) == b""
    client.send(data, b"", last=True)
    return page


async def test_port_forward(pods: Pods) -> None:
    sandbox, _ = await serving(pods)
    async with await Spdy.connect(await forward_url(pods, sandbox), FORWARD) as client:
        assert client.version == FORWARD
        pages = await asyncio.gather(*(get_page(client, number) for number in range(5)))
    assert all(page.startswith(b"HTTP/1.") and page.endswith(b"page\n") for page in pages)


async def test_a_port_forward_without_a_listener_is_reported(pods: Pods) -> None:
    sandbox = await pods.pod()
    async with await Spdy.connect(await forward_url(pods, sandbox), FORWARD) as client:
        names = {"port": "81", "requestID": "0"}
        error = await client.open(streamtype="error", **names)
        data = await client.open(streamtype="data", **names)
        message = await client.all_of(error)
        assert b"81" in message
        assert b"refused" in message
        await client.until(lambda: data in client.finished or data in client.reset)


@pytest.mark.root
async def test_port_forward_over_websockets(embedded: Pods) -> None:
    sandbox, _ = await serving(embedded)
    client = await WebSocket.connect(await forward_url(embedded, sandbox, 8080, 81), V4)
    client.send(b"\0GET / HTTP/1.0\r\n\r\n")
    found = await client.channels()
    assert found[0][:2] == found[1] == struct.pack("<H", 8080)
    assert found[0].endswith(b"page\n")
    assert found[3].startswith(struct.pack("<H", 81))
    assert b"refused" in found[3]
    await client.close()


@pytest.mark.root
async def test_port_forward_of_spdy_in_a_websocket(embedded: Pods) -> None:
    sandbox, _ = await serving(embedded)
    socket = await WebSocket.connect(await forward_url(embedded, sandbox), "SPDY/3.1+portforward.k8s.io")
    assert socket.version == "SPDY/3.1+portforward.k8s.io"
    async with tunnelled(socket) as client:
        assert (await get_page(client, 0)).endswith(b"page\n")


@pytest.mark.root
async def test_port_forward_in_the_host_network(embedded: Pods) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    options = cri.NamespaceOption(network=cri.NODE)
    security = cri.LinuxSandboxSecurityContext(namespace_options=options)
    sandbox = await embedded.pod(linux=cri.LinuxPodSandboxConfig(security_context=security))
    async with await Spdy.connect(await forward_url(embedded, sandbox), FORWARD) as client:
        names = {"port": str(port), "requestID": "0"}
        error = await client.open(streamtype="error", **names)
        data = await client.open(streamtype="data", **names)
        assert await client.all_of(data) == b""
        assert await client.all_of(error) == b""
    server.close()
    await server.wait_closed()


async def test_urls_are_good_once_and_for_their_kind(pods: Pods) -> None:
    container = await idle(pods)
    url = await exec_url(pods, container, "true")
    async with await Spdy.connect(url, *COMMAND) as client:
        await channels(client, "error", "stdout", "stderr")
    for bad in (url, url.rpartition("/")[0] + "/unknown"):
        with pytest.raises(Refusal) as refusal:
            await Spdy.connect(bad, *COMMAND)
        assert refusal.value.status == 404


async def test_no_common_protocol_is_refused(pods: Pods) -> None:
    container = await idle(pods)
    with pytest.raises(Refusal) as refusal:
        await Spdy.connect(await exec_url(pods, container, "true"), "v9.channel.k8s.io")
    assert refusal.value.status == 403
    assert V4 in refusal.value.head


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"cmd": ["sh"], "tty": True, "stdout": True, "stderr": True}, "tty"),
        ({"cmd": ["sh"]}, "stdin"),
    ],
)
async def test_senseless_streams_are_refused(pods: Pods, fields: dict[str, object], word: str) -> None:
    container = await idle(pods)
    request = cri.ExecRequest(container_id=container, **fields)  # type: ignore[arg-type]
    with pytest.raises(KubengineError, match=word):
        await pods.client._runtime("Exec", request, cri.ExecResponse)


async def test_streams_need_something_that_runs(pods: Pods) -> None:
    sandbox = await pods.pod()
    created = await pods.create(sandbox, "true")
    with pytest.raises(KubengineError):
        await exec_url(pods, created, "true")
    with pytest.raises(KubengineError):
        await attach_url(pods, created)
    with pytest.raises(KubengineError):
        await exec_url(pods, "0123456789", "true")
    await pods.client.stop_pod_sandbox(sandbox)
    if pods.kind == "embedded":  # containerd notices when the client connects
        with pytest.raises(KubengineError):
            await forward_url(pods, sandbox)


@pytest.mark.root
async def test_a_client_learns_that_its_container_has_ended(embedded: Pods) -> None:
    container = await idle(embedded)
    url = await exec_url(embedded, container, "true")
    await embedded.client.stop_container(container, 0)
    async with await Spdy.connect(url, *COMMAND) as client:
        ids = await channels(client, "error", "stdout", "stderr")
        status = json.loads(await client.all_of(ids["error"]))
        assert "no longer running" in status["message"]
