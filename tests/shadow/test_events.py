"""A shadow records the events of the kubelet and of the runtime, and `why` answers from them."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine.api.kubengine_config import RecordSection
from engine.cri import labels
from engine.cri.client import RuntimeClient
from engine.cri.records import EXITED
from engine.metrics import Registry
from engine.node.runtime_view import runtime_watch
from engine.node.runtime_view.runtime_watch import RuntimeWatch
from engine.record.blocks import RecordRow
from engine.record.reader import Record
from engine.record.why import causes, is_about
from engine.record.writer import RecordWriter
from engine.runtime.hollow import HollowRuntime
from engine.shadow.kubelet_reader import KubeletAccess
from engine.shadow.shadow_record import ShadowRecord
from engine.shadow.watch import Shadow, ShadowOptions
from engine.testing.apiserver.server import ApiServer
from engine.wire import cri_v1_pb2 as cri
from tests.shadow.fake_kubelet import Fake
from tests.shadow.test_watch import say
from tests.waiting import eventually

Start = Callable[..., Shadow]
WITH_CODE = {"runtime.kubengine.dev/exit-after": "50ms", "runtime.kubengine.dev/exit-code": "3"}
LOW = "The node was low on resource: memory."
UNHEALTHY = "Container c failed liveness probe, will be restarted"


@pytest.fixture
async def hollow() -> AsyncIterator[HollowRuntime]:
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            yield runtime


@pytest.fixture
async def start(fake: Fake, hollow: HollowRuntime, tmp_path: Path) -> AsyncIterator[Start]:
    """Start a shadow of the node n1, on which the pod `a` is, with an API server or none."""
    started: list[Shadow] = []
    say(fake, "a")

    def started_with(kubeconfig: Path | None = None) -> Shadow:
        section = RecordSection(directory=str(tmp_path / "record"))
        access, endpoint = KubeletAccess(fake.url), f"unix://{hollow.socket}"
        options = ShadowOptions(access, tmp_path, runtime=endpoint, kubeconfig=kubeconfig, record=section)
        started.append(Shadow(options))
        return started[-1]

    yield started_with
    for shadow in started:
        await shadow.close()


def recorded(tmp_path: Path, stream: str) -> list[RecordRow]:
    if not any((tmp_path / "record").glob("*.krec")):
        return []
    return [row for row in Record(tmp_path / "record").rows() if row.stream == stream]


def event(name: str, reason: str, message: str, *, pod: str = "a", node: str = "n1") -> dict[str, Any]:
    """Return an Event as a kubelet posts it."""
    about = {"kind": "Pod", "namespace": "default", "name": pod, "uid": f"uid-{pod}"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {**about, "fieldPath": "spec.containers{c}"},
        "reason": reason,
        "message": message,
        "reportingComponent": "kubelet",
        "reportingInstance": node,
        "lastTimestamp": "2026-01-02T03:04:05Z",
    }


async def test_the_kubelets_events_are_recorded_once(start: Start, tmp_path: Path) -> None:
    async with ApiServer(tmp_path / "server") as server:
        server.create("/api/v1/namespaces/default/events", event("1", "Killing", UNHEALTHY))
        server.create("/api/v1/namespaces/default/events", event("2", "Killing", UNHEALTHY, node="n2"))
        foreign = event("3", "Scheduled", "assigned") | {"reportingComponent": "default-scheduler"}
        server.create("/api/v1/namespaces/default/events", foreign)
        shadow = start(server.kubeconfig("admin"))
        await shadow.compare()
        await eventually(lambda: recorded(tmp_path, "event"))
        # It is written without another observation, so that a shadow that is killed loses a second at most.
        server.create("/api/v1/namespaces/default/events", event("4", "Evicted", LOW, pod="gone"))
        await eventually(lambda: len(recorded(tmp_path, "event")) == 2)
        # A watch that begins again, without what it missed, delivers no event twice.
        server.fail(410, path="/api/v1/events", reason="Expired")
        server.disconnect()
        server.create("/api/v1/namespaces/default/events", event("5", "Pulled", "there") | {"count": 7})
        await eventually(lambda: len(recorded(tmp_path, "event")) == 3)
    first, _, last = recorded(tmp_path, "event")
    assert (first.name, first.text, first.pod, first.container) == ("Killing", UNHEALTHY, "default/a", "c")
    assert (first.time, first.uid, last.inputs) == (1767323045.0, "uid-a", {"count": 7})
    assert "events" not in shadow.faults
    sentences = [one.sentence for one in causes(Record(tmp_path / "record").rows())]
    assert sentences == [
        f"2026-01-02 03:04:05Z: default/a/c was stopped because of a probe: {UNHEALTHY}",
        f"2026-01-02 03:04:05Z: default/gone/c was evicted: {LOW}",
    ]


async def test_an_event_that_comes_during_a_write_is_written_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, writes = asyncio.get_running_loop(), []
    append = RecordWriter._append

    def slow(writer: RecordWriter, block: bytes) -> None:
        writes.append(block)
        if len(writes) == 1:
            # The loop is not in the middle of anything else: it takes the second event now.
            asyncio.run_coroutine_threadsafe(take("b"), loop).result()
        append(writer, block)

    async def take(name: str) -> None:
        status = cri.PodSandboxStatus(id="s", labels={labels.POD_UID: "uid", labels.POD_NAME: name})
        record.runtime_event(cri.ContainerEventResponse(container_id="s", pod_sandbox_status=status))

    monkeypatch.setattr(RecordWriter, "_append", slow)
    record = ShadowRecord(RecordSection(directory=str(tmp_path / "record")), time.time)
    await take("a")
    await eventually(lambda: [one.pod for one in recorded(tmp_path, "runtime")] == ["/a", "/b"])
    await record.close()


async def test_events_that_may_not_be_read_are_said_once(start: Start, tmp_path: Path) -> None:
    async with ApiServer(tmp_path / "server") as server:
        server.fail(403, path="/api/v1/events", times=None)
        shadow = start(server.kubeconfig("system:node:n1"))
        await shadow.compare()
        await eventually(lambda: any(seen.path == "/api/v1/events" for seen in server.requests))
        for _ in range(4):
            await shadow.compare()
    assert shadow.skipped == 0
    assert shadow.faults["events"].times == 1
    assert "/api/v1/events" in shadow.faults["events"].text


async def test_what_happens_between_two_observations_comes_from_the_runtimes_events(
    start: Start, hollow: HollowRuntime, tmp_path: Path
) -> None:
    shadow = start()
    await shadow.compare()
    client = RuntimeClient(str(hollow.socket))
    await add(client, "a", WITH_CODE)
    await eventually(lambda: "container stopped" in [one.name for one in recorded(tmp_path, "runtime")])
    await client.close()
    rows = [one for one in recorded(tmp_path, "runtime") if is_about("a", one)]
    assert [one.name for one in rows if one.container] == [
        "container created", "container started", "container stopped",
    ]  # fmt: skip
    assert rows[-1].text.endswith("with exit code 3")


async def add(client: RuntimeClient, name: str, annotations: dict[str, str]) -> None:
    """Let the container of a pod run."""
    of_pod = {labels.POD_UID: f"uid-{name}", labels.POD_NAME: name, labels.POD_NAMESPACE: "default"}
    metadata = cri.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="default")
    sandbox = cri.PodSandboxConfig(metadata=metadata, labels=of_pod)
    of = await client.run_pod_sandbox(sandbox)
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="c"),
        image=cri.ImageSpec(image=await client.pull_image("busybox:1")),
        labels={**of_pod, labels.CONTAINER_NAME: "c"},
        annotations=annotations,
    )
    await client.start_container(await client.create_container(of, config, sandbox))


async def test_a_runtime_with_events_is_not_listed_each_time(
    hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_watch, "STREAM_SETTLED_SECONDS", 0.05)
    client, lists = RuntimeClient(str(hollow.socket)), []
    read = client.read_pod_sandboxes

    async def counted(*arguments: Any) -> Any:
        lists.append(time.monotonic())
        return await read(*arguments)

    monkeypatch.setattr(client, "read_pod_sandboxes", counted)
    watch = RuntimeWatch(client, on_change=lambda uid: None, clock=time.time, registry=Registry())
    # Without a stream, each call lists.
    await watch.refresh()
    await watch.refresh()
    assert len(lists) == 2
    watch.follow()
    await eventually(lambda: watch.streaming)
    # A list made before the stream stood may lack something that no event tells.
    for _ in range(5):
        await watch.refresh()
    assert len(lists) == 3
    await add(client, "a", WITH_CODE)
    await eventually(lambda: [one.state for one in watch.pod("uid-a").containers] == [EXITED])
    assert len(lists) == 3
    # The stream ends when its runtime stops.
    await hollow.stop()
    await eventually(lambda: not watch.streaming)
    await hollow.start()
    await watch.refresh()
    assert len(lists) == 4
    await watch.stop()
    await client.close()


def test_an_event_adds_nothing_to_a_decision_that_tells_the_same() -> None:
    names = [
        ("event", "Evicted"),
        ("decision", "eviction evicted"),
        ("event", "Killing"),
        ("event", "Pulled"),
    ]
    rows = [
        RecordRow(time=1.0, stream=stream, name=name, text="why", pod="default/p", uid="u")
        for stream, name in names
    ]
    assert [one.what for one in causes(rows)] == ["was evicted"]
    assert [one.what for one in causes(rows[:1])] == ["was evicted"]
    refused = replace(rows[0], text="The node had condition: [DiskPressure]. ")
    assert [one.what for one in causes([refused])] == ["was refused"]
