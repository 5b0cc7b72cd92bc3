"""Probed pods without a node: a manager, a clock, and servers that answer whatever a test writes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from engine.api.events import EventRecorder
from engine.api.kubengine_config import ProbesSection
from engine.api.pod import Pod
from engine.metrics import Registry
from engine.probes.manager import ProbeManager, ProbeResult
from tests.contexts import node_context
from tests.turns import take_turns

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Rig:
    """Hold a probe manager and its results."""

    def __init__(self, section: ProbesSection, **more: Any) -> None:
        self.results: list[ProbeResult] = []
        self.recorder = EventRecorder(time.time)
        self.registry = Registry()
        self.manager = ProbeManager(
            node_context(
                probes=section,
                recorder=self.recorder,
                registry=self.registry,
                decisions=more.pop("decisions", None),
            ),
            on_result=self.results.append,
            jitter=lambda: 0.0,
            **more,
        )

    def run(
        self, pod: Pod, container_id: str = "c1", *, ip: str = "127.0.0.1", ago: float = 60, **add: Any
    ) -> None:
        """Add a pod all of whose containers are running."""
        self.manager.add_pod(pod, **add)
        self.manager.update_pod(pod.uid, pod_ip=ip)
        for container in pod.all_containers:
            self.running(pod, container_id, container.name, ago=ago)

    def running(self, pod: Pod, container_id: str, name: str = "app", *, ago: float = 60) -> None:
        self.manager.update_container(
            pod.uid, name, container_id=container_id, state="running", started_at=time.time() - ago
        )

    def seen(self, type: str, container_id: str | None = None) -> list[str]:
        return [r.result for r in self.results if r.type == type and container_id in (None, r.container_id)]

    def messages(self, reason: str) -> list[str]:
        return [event.message for event in self.recorder if event.reason == reason]

    def probe(self, type: str) -> dict[str, Any]:
        return next(p for p in self.manager.describe()["probes"] if p["type"] == type)


@contextlib.asynccontextmanager
async def serving(
    handler: Handler, host: str = "127.0.0.1", *, port: int = 0, **how: Any
) -> AsyncIterator[int]:
    """Serve TCP on `port`, or on a free one, and yield it; at the end, close its connections."""
    tasks: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await handler(reader, writer)
        writer.transport.abort()
        tasks.discard(task)

    server = await asyncio.start_server(handle, host, port, **how)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        # Connections that were accepted before reach `handle` within a few turns of the event loop, and
        # aborted ones close within a few. On a busy machine, one turn may take longer than any sleep.
        await take_turns(10)
        for task in list(tasks):
            task.cancel()
        await take_turns(10)


def replying(*parts: bytes, pause: float = 0.0, requests: list[bytes] | None = None) -> Handler:
    """Read a request, write the parts with a pause after each, close."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if requests is not None:
            requests.append(request)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)

    return handler


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


FAST = {"periodMilliseconds": 50, "timeoutMilliseconds": 2000}


def pod_with(uid: str = "u1", *, restart_policy: str = "Always", sidecar: bool = False, **probes: Any) -> Pod:
    """Return a pod of one container `app` with probes as in a manifest.

    `liveness={"tcpSocket": {"port": 80}}`; the key `ms` holds the annotation's times, by default those of
    `FAST`.
    """
    times = {type: {**FAST, **probe.pop("ms", {})} for type, probe in probes.items()}
    container = {"name": "app", "image": "x", "ports": [{"name": "web", "containerPort": 0}]}
    container |= {f"{type}Probe": probe for type, probe in probes.items()}
    if sidecar:
        container["restartPolicy"] = "Always"
    pod = {
        "metadata": {
            "name": f"pod-{uid}",
            "namespace": "default",
            "uid": uid,
            "annotations": {"kubengine.dev/probes": msgspec.json.encode({"app": times}).decode()},
        },
        "spec": {
            "restartPolicy": restart_policy,
            ("initContainers" if sidecar else "containers"): [container],
        },
    }
    return msgspec.convert(pod, Pod)


def http(port: int, path: str = "/healthz", **more: Any) -> dict[str, Any]:
    return {"httpGet": {"port": port, "path": path, **more.pop("get", {})}, **more}
