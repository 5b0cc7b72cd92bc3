"""A relist sees whatever has changed, in the runtime or in what is known of it, though quiet ones decode
nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from engine.cri import labels
from engine.cri.client import RuntimeClient
from engine.cri.records import EXITED, RUNNING
from engine.metrics import Registry
from engine.node.runtime_view import runtime_watch
from engine.node.runtime_view.runtime_watch import RuntimeWatch, relist_period
from engine.runtime.hollow import HollowRuntime
from engine.wire import cri_v1_pb2 as cri
from tests.waiting import eventually

UIDS = ["uid-a", "uid-b", "uid-c"]


class Relisted:
    """Three pods of one running container each, and a watch that has no stream until it is started."""

    def __init__(self, client: RuntimeClient) -> None:
        self.client = client
        self.changed: list[str] = []
        self.watch = RuntimeWatch(
            client, on_change=self.changed.append, clock=time.time, registry=Registry(), relist_seconds=0.05
        )
        self.containers: dict[str, str] = {}
        self.sandboxes: dict[str, str] = {}

    async def add(self, uid: str) -> None:
        of_pod = {labels.POD_UID: uid, labels.POD_NAME: uid, labels.POD_NAMESPACE: "default"}
        metadata = cri.PodSandboxMetadata(name=uid, uid=uid, namespace="default")
        sandbox = cri.PodSandboxConfig(metadata=metadata, labels=of_pod)
        self.sandboxes[uid] = await self.client.run_pod_sandbox(sandbox)
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="c"),
            image=cri.ImageSpec(image=await self.client.pull_image("busybox:1")),
            labels={**of_pod, labels.CONTAINER_NAME: "c"},
        )
        self.containers[uid] = await self.client.create_container(self.sandboxes[uid], config, sandbox)
        await self.client.start_container(self.containers[uid])

    async def quiet(self) -> None:
        """Until relists have nothing to say."""
        await self.watch.relist()
        await self.watch.relist()
        self.changed.clear()
        await self.watch.relist()
        assert not self.changed


@pytest.fixture
async def relisted(hollow: HollowRuntime) -> AsyncIterator[Relisted]:
    client = RuntimeClient(str(hollow.socket))
    relisted = Relisted(client)
    for uid in UIDS:
        await relisted.add(uid)
    await relisted.quiet()
    yield relisted
    await relisted.watch.stop()
    await client.close()


async def test_a_relist_finds_changes_in_the_runtime(relisted: Relisted) -> None:
    watch, client = relisted.watch, relisted.client
    await client.stop_container(relisted.containers["uid-b"], 0)
    await watch.relist()
    assert relisted.changed == ["uid-b"]
    assert [watch.pod(uid).containers[0].state for uid in UIDS] == [RUNNING, EXITED, RUNNING]
    await relisted.quiet()
    await client.stop_pod_sandbox(relisted.sandboxes["uid-a"])
    await watch.relist()
    assert relisted.changed == ["uid-a"]
    await relisted.quiet()
    await client.remove_pod_sandbox(relisted.sandboxes["uid-a"])
    await watch.relist()
    assert relisted.changed == ["uid-a"]
    assert set(watch.pods) == {"uid-b", "uid-c"}
    await relisted.quiet()
    await relisted.add("uid-d")
    await watch.relist()
    assert relisted.changed == ["uid-d"]
    assert watch.pod("uid-d").containers[0].state == RUNNING


async def test_a_relist_corrects_the_known_state(relisted: Relisted) -> None:
    """The runtime's lists are unchanged, but the view has lost its records."""
    watch = relisted.watch
    watch.forget("uid-c", [relisted.containers["uid-c"]])
    relisted.changed.clear()
    await watch.relist()
    assert relisted.changed == ["uid-c"]
    assert watch.pod("uid-c").containers[0].state == RUNNING


async def test_a_refresh_before_the_relist_keeps_its_changes(relisted: Relisted) -> None:
    watch, container = relisted.watch, relisted.containers["uid-a"]
    await relisted.client.stop_container(container, 0)
    await watch.refresh_container("uid-a", container, relisted.sandboxes["uid-a"])
    assert relisted.changed == ["uid-a"]
    await watch.relist()
    assert relisted.changed == ["uid-a"]
    assert watch.pod("uid-a").containers[0].state == EXITED


async def test_quiet_lists_are_not_decoded(relisted: Relisted, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    states = runtime_watch._container_states

    def counted(message: bytes) -> dict[str, tuple[str, int]]:
        decoded.append(message)
        return states(message)

    monkeypatch.setattr(runtime_watch, "_container_states", counted)
    for _ in range(3):
        await relisted.watch.relist()
    assert not decoded
    await relisted.client.stop_container(relisted.containers["uid-a"], 0)
    await relisted.watch.relist()
    assert len(decoded) == 1
    assert relisted.changed == ["uid-a"]


class Overtaken:
    """Replace a method of the client: its first answer is held back until the watch has learned of a pod
    that was created meanwhile."""

    def __init__(self, relisted: Relisted, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._relisted = relisted
        self._call = getattr(relisted.client, method)
        self.times = 0
        self.known = False
        """Whether the pod was known to run when the runtime was asked again."""
        monkeypatch.setattr(relisted.client, method, self)

    async def __call__(self, *arguments: object) -> object:
        self.times += 1
        self.known = self._relisted.watch.runs("uid-d", "c")
        answer = await self._call(*arguments)
        if self.times == 1:
            await self._relisted.add("uid-d")
            await eventually(lambda: self._relisted.watch.runs("uid-d", "c"))
        return answer


async def test_a_list_that_an_event_has_overtaken_undoes_nothing(
    relisted: Relisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = relisted.watch
    await watch.start()
    await eventually(lambda: watch.streaming)
    overtaken = Overtaken(relisted, "read_containers", monkeypatch)
    watch.relist_soon()
    await eventually(lambda: overtaken.times >= 2)
    assert overtaken.known


async def test_a_pods_list_that_an_event_has_overtaken_is_asked_for_again(
    relisted: Relisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = relisted.watch
    await watch.start()
    await eventually(lambda: watch.streaming)
    overtaken = Overtaken(relisted, "list_containers", monkeypatch)
    assert [c.state for c in (await watch.reread_pod("uid-d")).containers] == [RUNNING]
    assert overtaken.times >= 2


def test_relists_become_rarer_while_the_stream_is_open() -> None:
    assert [relist_period(stood) for stood in (0.0, 1.0, 2.0, 64.0, 299.0, 301.0, 1e6)] == [
        1.0, 1.0, 2.0, 64.0, 299.0, 300.0, 300.0
    ]  # fmt: skip


async def test_changes_before_a_slow_event_stream_opens_are_found(
    relisted: Relisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event stream is open, but has sent nothing yet."""

    async def silent() -> AsyncIterator[cri.ContainerEventResponse]:
        await asyncio.Event().wait()
        yield cri.ContainerEventResponse()

    monkeypatch.setattr(relisted.client, "events", silent)
    watch = relisted.watch
    await watch.start()
    await eventually(lambda: watch.streaming)
    before = watch.last_relist
    await eventually(lambda: watch.last_relist != before)
    await relisted.add("uid-d")
    await eventually(lambda: watch.runs("uid-d", "c"))


async def test_a_relist_resolves_a_doubt_even_while_the_stream_is_open(relisted: Relisted) -> None:
    watch = relisted.watch
    await watch.start()
    await eventually(lambda: watch.streaming)
    await relisted.quiet()
    watch.forget("uid-c", [relisted.containers["uid-c"]])
    assert not watch.runs("uid-c", "c")
    watch.relist_soon()
    await eventually(lambda: watch.runs("uid-c", "c"))


async def test_events_from_before_the_subscription_are_ignored(
    relisted: Relisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like containerd 2, the runtime has kept events while nobody listened, and one names a lost pod."""
    watch, client = relisted.watch, relisted.client
    listen = client.events
    gone = {labels.POD_UID: "uid-gone", labels.POD_NAME: "gone", labels.POD_NAMESPACE: "default"}

    async def events() -> AsyncIterator[cri.ContainerEventResponse]:
        yield cri.ContainerEventResponse(
            container_id="gone",
            container_event_type=cri.CONTAINER_STARTED_EVENT,
            created_at=time.time_ns() - 10**9,
            pod_sandbox_status=cri.PodSandboxStatus(id="gone", state=cri.SANDBOX_READY, labels=gone),
        )
        async for event in listen():
            yield event

    monkeypatch.setattr(client, "events", events)
    monkeypatch.setattr(runtime_watch, "STREAM_SETTLED_SECONDS", 0.2)
    await watch.start()
    await eventually(lambda: watch.streaming)
    await client.stop_container(relisted.containers["uid-b"], 0)
    await eventually(lambda: watch.pod("uid-b").containers[0].state == EXITED)
    assert "uid-gone" not in relisted.changed


async def test_events_from_before_the_removal_of_a_pod_are_ignored(
    relisted: Relisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy agent reads events late: one from the life of a pod arrives after the agent removed the pod."""
    watch, client = relisted.watch, relisted.client
    listen, asked, late = client.events, asyncio.Event(), asyncio.Event()
    status = await client.pod_sandbox_status(relisted.sandboxes["uid-a"])
    event = cri.ContainerEventResponse(
        container_id=relisted.containers["uid-a"],
        container_event_type=cri.CONTAINER_STOPPED_EVENT,
        pod_sandbox_status=status.status,
    )

    async def events() -> AsyncIterator[cri.ContainerEventResponse]:
        asked.set()
        await late.wait()
        yield event
        async for each in listen():
            yield each

    monkeypatch.setattr(client, "events", events)
    await watch.start()
    await asked.wait()
    event.created_at = time.time_ns()
    await client.remove_pod_sandbox(relisted.sandboxes["uid-a"])
    watch.forget("uid-a", [relisted.containers["uid-a"], relisted.sandboxes["uid-a"]])
    relisted.changed.clear()
    late.set()
    await asyncio.sleep(0.1)
    await client.stop_container(relisted.containers["uid-b"], 0)
    await eventually(lambda: watch.pod("uid-b").containers[0].state == EXITED)
    assert "uid-a" not in relisted.changed
    assert "uid-a" not in watch.pods
