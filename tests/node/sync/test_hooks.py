"""postStart and preStop: what counts as a failure, and what the pod then says."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from engine.api.documents import convert
from engine.api.errors import Refused
from engine.api.events import EventRecorder
from engine.api.pod import Container, LifecycleHandler, Pod, TCPSocketAction
from engine.api.status import ContainerStateWaiting
from engine.cri.client import RuntimeClient
from engine.node.sync.hooks import HookRunner
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container
from tests.ports import free_port
from tests.waiting import eventually


@asynccontextmanager
async def answering(*answers: str) -> AsyncIterator[tuple[int, list[str]]]:
    """Serve one answer after another; yield the port and the requests."""
    asked: list[str] = []
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.read(4096)
        asked.append(head.decode(errors="replace"))
        writer.write(left.pop(0).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked


Events = list[tuple[str, str]]


@asynccontextmanager
async def hook_runner(hollow: HollowRuntime) -> AsyncIterator[tuple[HookRunner, EventRecorder]]:
    runtime, recorder = RuntimeClient(str(hollow.socket)), EventRecorder(time.time)
    addresses: Any = SimpleNamespace(first="127.0.0.1")
    try:
        yield HookRunner(runtime, addresses, recorder), recorder
    finally:
        await runtime.close()


async def run_get(hollow: HollowRuntime, action: dict[str, Any]) -> Events:
    """Run a postStart hook; return the events that it caused."""
    document = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u-1"},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "ports": [{"name": "web", "containerPort": 81}],
                    "lifecycle": {"postStart": {"httpGet": {"path": "/x", "scheme": "HTTP", **action}}},
                }
            ]
        },
    }
    pod = convert(document, Pod, "p")
    spec = pod.spec.containers[0]
    assert spec.lifecycle is not None
    assert spec.lifecycle.post_start is not None
    async with hook_runner(hollow) as (hooks, recorder):
        await hooks.run(pod, spec, "id", spec.lifecycle.post_start, None)
        return [(event.reason, event.message) for event in recorder]


async def test_any_answer_to_a_get_is_a_success(hollow: HollowRuntime):
    async with answering("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as (
        port,
        asked,
    ):
        await run_get(hollow, {"port": port, "httpHeaders": [{"name": "X-A", "value": "b"}]})
    (request,) = asked
    assert request.startswith("GET /x HTTP/1.1\r\n")
    assert "User-Agent: kube-lifecycle/1.36\r\n" in request
    assert "X-A: b\r\n" in request


async def test_a_redirect_is_followed(hollow: HollowRuntime):
    moved = "HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    found = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with answering(moved, found) as (port, asked):
        await run_get(hollow, {"port": port})
    assert [request.split(" ")[1] for request in asked] == ["/x", "/y"]


async def test_a_plain_server_is_asked_again_without_tls(hollow: HollowRuntime):
    bad = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    headers = [{"name": "Authorization", "value": "secret"}]
    async with answering(bad, bad) as (port, asked):
        events = await run_get(hollow, {"port": port, "scheme": "HTTPS", "httpHeaders": headers})
    assert asked[-1].startswith("GET /x ")
    assert "secret" not in asked[-1]
    text = f"request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, retry with HTTP succeeded"
    assert events == [("LifecycleHTTPFallback", text)]


async def test_a_redirect_to_another_host_is_not_followed(hollow: HollowRuntime):
    """The response is one nonetheless; a container must not choose whom the node asks."""
    async with answering() as (elsewhere, asked_elsewhere):
        moved = f"HTTP/1.1 302 Found\r\nLocation: http://localhost:{elsewhere}/\r\nContent-Length: 0\r\n\r\n"
        async with answering(moved) as (port, asked):
            await run_get(hollow, {"port": port})
    assert (len(asked), asked_elsewhere) == (1, [])


async def test_servers_without_an_answer_hold_no_thread(hollow: HollowRuntime):
    """A preStop hook may take as long as the pod's grace period; the agent writes files in its threads."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        writer.write(b"HTTP/1.1 200 OK\r\n")

    accepted: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        await asyncio.to_thread(int)
        threads = threading.active_count()
        port = server.sockets[0].getsockname()[1]
        hooks = [asyncio.create_task(run_get(hollow, {"port": port})) for _ in range(60)]
        await eventually(lambda: len(accepted) == 60)
        assert threading.active_count() == threads
        for each in accepted:
            each.write(b"Content-Length: 0\r\n\r\n")
        await asyncio.gather(*hooks)
        for each in accepted:
            each.close()


async def test_no_listener_and_no_such_port(hollow: HollowRuntime):
    port = free_port()
    with pytest.raises(Refused) as caught:
        await run_get(hollow, {"port": port})
    assert str(caught.value) == (
        'HTTP lifecycle hook (/x) for Container "c" in Pod "p_default(u-1)" failed - error: '
        f'Get "http://127.0.0.1:{port}/x": dial tcp 127.0.0.1:{port}: connect: connection refused'
    )
    with pytest.raises(Refused, match="there is no port named 'nope'"):
        await run_get(hollow, {"port": "nope"})


async def test_a_handler_of_another_kind_is_refused(hollow: HollowRuntime):
    handler = LifecycleHandler(tcp_socket=TCPSocketAction(port=1))
    async with hook_runner(hollow) as (hooks, _):
        with pytest.raises(Refused, match="neither exec, httpGet nor sleep"):
            await hooks.run(Pod(), Container(name="c"), "id", handler, None)


async def test_a_failed_post_start_hook_is_explained_in_the_status_and_hidden_in_events(rig: Rig):
    await rig.start()
    hook = {"postStart": {"exec": {"command": ["sh", "-c", "exit 4"]}}}
    rig.write(
        "hooked",
        {"containers": [container(lifecycle=hook)]},
        annotations={"runtime.kubengine.dev/exec-exit-code": "4"},
    )

    def waiting() -> ContainerStateWaiting:
        pod = rig.pod("hooked")
        statuses = (pod.status.container_statuses if pod is not None else None) or []
        return (statuses and statuses[0].state.waiting) or ContainerStateWaiting()

    said: list[str] = []
    await eventually(
        lambda: waiting().reason == "PostStartHookError" and (said.append(waiting().message) or True)
    )
    pod = rig.pod("hooked")
    assert pod is not None
    assert said == [
        'Exec lifecycle hook ([sh -c exit 4]) for Container "c" in Pod '
        f"\"hooked-n1_default({pod.uid})\" failed - error: command 'sh -c exit 4' exited with 4: , "
        'message: ""'
    ]
    assert rig.node is not None
    events = {event.reason: event.message for event in rig.node.recorder}
    assert events["FailedPostStartHook"] == "PostStartHook failed"
    assert events["Killing"] == "FailedPostStartHook"
