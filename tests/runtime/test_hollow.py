"""The hollow runtime: states without processes, endings on request, counted calls, events."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.cri.client import RuntimeClient, Unimplemented
from engine.runtime.hollow import PREFIX, HollowRuntime
from engine.wire import cri_v1_pb2 as cri
from tests.runtime.pods import BUSYBOX, Pods
from tests.waiting import eventually

Hollow = tuple[HollowRuntime, Pods]
Kind = cri.ContainerEventType


async def test_whole_life_without_processes(hollow: Hollow) -> None:
    _, pods = hollow
    sandbox = await pods.pod(labels={"app": "a"})
    container = await pods.create(sandbox, name="c", labels={"l": "1"})
    assert (await pods.status(container)).state == cri.CONTAINER_CREATED
    await pods.client.start_container(container)
    assert (await pods.status(container)).state == cri.CONTAINER_RUNNING
    assert (await pods.client.exec_sync(container, ["true"], 5)).exit_code == 0
    await pods.client.stop_container(container, 30)
    status = await pods.status(container)
    assert (status.state, status.exit_code) == (cri.CONTAINER_EXITED, 143)
    await pods.client.remove_pod_sandbox(sandbox)
    assert await pods.client.list_containers() == []
    assert await pods.client.list_pod_sandboxes() == []


async def test_containers_end_as_annotations_say(hollow: Hollow) -> None:
    _, pods = hollow
    sandbox = await pods.pod(
        annotations={
            PREFIX + "exit-after": "50ms",
            PREFIX + "exit-code.two": "7",
            PREFIX + "exit-reason.two": "OOMKilled",
            PREFIX + "ip": "127.0.0.9",
        }
    )
    assert (await pods.client.pod_sandbox_status(sandbox)).status.network.ip == "127.0.0.9"
    one = await pods.start(sandbox, name="one")
    two = await pods.start(sandbox, name="two")
    own = await pods.start(sandbox, name="own", annotations={PREFIX + "exit-after": "1h"})
    first, second = await pods.ended(one), await pods.ended(two)
    assert (first.exit_code, first.reason) == (0, "Completed")
    assert (second.exit_code, second.reason) == (7, "OOMKilled")
    assert first.finished_at - first.started_at >= 40_000_000
    assert (await pods.status(own)).state == cri.CONTAINER_RUNNING


async def test_starts_stops_and_commands_go_wrong_as_annotations_say(hollow: Hollow) -> None:
    runtime, pods = hollow
    sandbox = await pods.pod()
    bad = await pods.create(sandbox, annotations={PREFIX + "start-error": "no such file"})
    with pytest.raises(Refused, match="no such file"):
        await pods.client.start_container(bad)
    assert (await pods.status(bad)).reason == "StartError"
    slow = await pods.start(
        sandbox, annotations={PREFIX + "stop-after": "1h", PREFIX + "exec-exit-code": "1"}
    )
    assert (await pods.client.exec_sync(slow, ["x"], 1)).exit_code == 1
    await pods.client.stop_container(slow, 1)
    assert (await pods.status(slow)).exit_code == 137
    by_hand = await pods.start(sandbox)
    runtime.end_container(by_hand, exit_code=3)
    assert (await pods.status(by_hand)).exit_code == 3
    with pytest.raises(Refused, match="exit-after"):
        await pods.create(sandbox, annotations={PREFIX + "exit-after": "soon"})


async def test_every_change_is_an_event(hollow: Hollow) -> None:
    _, pods = hollow
    events: list[cri.ContainerEventResponse] = []

    async def listen() -> None:
        async for event in pods.client.events():
            events.append(event)

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0.1)
    sandbox = await pods.pod()
    container = await pods.start(sandbox, annotations={PREFIX + "exit-after": "10ms"})
    await pods.ended(container)
    await pods.client.remove_container(container)
    await pods.client.remove_pod_sandbox(sandbox)

    async def all_there() -> bool:
        return len(events) == 8

    await eventually(all_there)
    kinds = [(event.container_id, Kind.Name(event.container_event_type)) for event in events]
    assert kinds == [
        (sandbox, "CONTAINER_CREATED_EVENT"),
        (sandbox, "CONTAINER_STARTED_EVENT"),
        (container, "CONTAINER_CREATED_EVENT"),
        (container, "CONTAINER_STARTED_EVENT"),
        (container, "CONTAINER_STOPPED_EVENT"),
        (container, "CONTAINER_DELETED_EVENT"),
        (sandbox, "CONTAINER_STOPPED_EVENT"),
        (sandbox, "CONTAINER_DELETED_EVENT"),
    ]
    stopped = events[4]
    assert stopped.pod_sandbox_status.id == sandbox
    assert [c.state for c in stopped.containers_statuses] == [cri.CONTAINER_EXITED]
    listening.cancel()


async def test_calls_and_bytes_are_counted(hollow: Hollow) -> None:
    runtime, pods = hollow
    sandbox = await pods.pod()
    for _ in range(3):
        await pods.start(sandbox)
    before = runtime.counts().get("ListContainers")
    listed = await pods.client.list_containers()
    counts = runtime.counts()
    assert before is None
    assert counts["CreateContainer"]["calls"] == 3
    assert counts["ListContainers"] == {
        "calls": 1,
        "errors": 0,
        "bytes_in": 0,
        "bytes_out": cri.ListContainersResponse(containers=listed).ByteSize(),
    }
    with pytest.raises(Refused):
        await pods.client.start_container("f" * 64)
    assert runtime.counts()["StartContainer"]["errors"] == 1


async def test_images_are_whatever_was_pulled(hollow: Hollow) -> None:
    runtime, pods = hollow
    assert await pods.client.image_status("example.com/a/b:1") is None
    reference = await pods.client.pull_image("example.com/a/b:1")
    image = await pods.client.image_status("example.com/a/b:1")
    assert image is not None
    assert image.id == reference
    assert list(image.repo_tags) == ["example.com/a/b:1"]
    assert (await pods.client.image_status(image.repo_digests[0])) == image
    runtime.images.add("big:1", size=10 << 30)
    assert (await pods.client.image_fs_info()).image_filesystems[0].used_bytes.value > 10 << 30
    await pods.client.remove_image(reference)
    await pods.client.remove_image(reference)
    assert {tag for i in await pods.client.list_images() for tag in i.repo_tags} == {
        BUSYBOX,
        "docker.io/library/big:1",
    }


async def test_a_thousand_pods(hollow: Hollow) -> None:
    _, pods = hollow

    async def make(number: int) -> None:
        sandbox = await pods.pod(pods.config(f"many-{number}"))
        await pods.start(sandbox)
        await pods.start(sandbox)

    for start in range(0, 1000, 100):
        await asyncio.gather(*(make(number) for number in range(start, start + 100)))
    assert len(await pods.client.list_pod_sandboxes()) == 1000
    assert len(await pods.client.list_containers()) == 2000


async def test_reader_that_falls_behind_is_cut_off(hollow: Hollow, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, pods = hollow
    monkeypatch.setattr("engine.runtime.events.BACKLOG", 3)
    stream = runtime.service.get_container_events(cri.GetEventsRequest())
    sandbox = await pods.pod()
    reading = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    for _ in range(6):
        runtime.service._events.notify(
            runtime.service.records.sandbox(sandbox), sandbox, cri.CONTAINER_STARTED_EVENT, 1
        )

    async def read_on() -> None:
        await reading
        async for _ in stream:
            pass

    with pytest.raises(Refused, match="behind"):
        await read_on()


async def test_left_out_calls_say_so(hollow: Hollow) -> None:
    _, pods = hollow
    with pytest.raises(Unimplemented, match="CheckpointContainer"):
        await pods.client._runtime(
            "CheckpointContainer", cri.CheckpointContainerRequest(), cri.CheckpointContainerResponse
        )


async def test_socket_is_private_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "r.sock"
    async with HollowRuntime(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(Refused, match="another process"):
            await HollowRuntime(path).start()
    assert not path.exists()
    import socket

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with HollowRuntime(path):
        client = RuntimeClient(str(path))
        assert (await client.version()).runtime_name == "kubengine-hollow"
        await client.close()


async def test_command_line_writes_its_counts(tmp_path: Path) -> None:
    async with command_line(tmp_path) as (process, client):
        await client.list_images()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    counts = json.loads((tmp_path / "stats.json").read_text())
    assert counts["ListImages"]["calls"] == 1
    assert not (tmp_path / "r.sock").exists()


@asynccontextmanager
async def command_line(directory: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, RuntimeClient]]:
    socket = directory / "r.sock"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine.cli", "runtime", "--hollow", "--socket", str(socket),
        "--stats-file", str(directory / "stats.json"),
    )  # fmt: skip

    async def there() -> bool:
        return socket.exists()

    await eventually(there)
    client = RuntimeClient(str(socket))
    yield process, client
    await client.close()
