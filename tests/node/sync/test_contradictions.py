"""A runtime that says once of what runs that there is no such thing: its lists decide."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.api.duration import RetryDelays
from engine.api.errors import Refused
from engine.api.lifecycle import PodEnd
from engine.node.sync import sync
from engine.runtime.hollow import HollowRuntime
from engine.runtime.image_service import ImageService
from engine.runtime.objects.records import RuntimeContainer
from engine.runtime.server import CriServer
from engine.wire import cri_v1_pb2 as cri
from tests.node.faults import FailingService
from tests.node_rig import Rig, container
from tests.waiting import eventually

EVICTED = PodEnd("Evicted", "the node was short of it")


@asynccontextmanager
async def forgetful(*methods: str, **faults: str) -> AsyncIterator[tuple[Rig, HollowRuntime]]:
    """Start a node on a runtime whose `methods` answer "not found" at their first call, and whose first calls
    of the methods in `faults` fail in that way.
    """
    with tempfile.TemporaryDirectory(prefix="kc-") as short:
        runtime = HollowRuntime(Path(short) / "cri.sock")
        service: object = runtime.service
        for method, kind in (dict.fromkeys(methods, "not found") | faults).items():
            service = FailingService(service, {}, method, 1, kind)
        services = {"RuntimeService": service, "ImageService": ImageService(runtime.images)}
        runtime._server = CriServer(runtime.socket, services)
        async with runtime:
            rig = Rig(Path(short), runtime.socket)
            await rig.start()
            yield rig, runtime
            await rig.close()


@pytest.mark.parametrize("method", ["container_status", "pod_sandbox_status"])
async def test_every_listed_contradiction_exists(method: str) -> None:
    async with forgetful(method) as (rig, runtime):
        rig.write("a", {"containers": [container()]})
        await eventually(lambda: rig.phase("a") == "Running")
        assert runtime.counts()["CreateContainer"]["calls"] == 1
        assert runtime.counts()["RunPodSandbox"]["calls"] == 1


@pytest.mark.parametrize("method", ["start_container", "create_container", "container_status"])
async def test_a_container_whose_start_is_in_doubt_is_not_started_again(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event tells of it either, and the next attempt follows before the runtime is listed again. The log
    exists, as with a runtime that runs processes.
    """
    monkeypatch.setattr(sync, "RETRIES", RetryDelays(0.01, 0.01))
    async with forgetful(get_container_events="hangs", **{method: "answer lost"}) as (rig, runtime):
        create = runtime.backend.create_container

        async def create_with_log(made: RuntimeContainer, image: cri.Image) -> None:
            log = Path(made.log_path)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
            await create(made, image)

        monkeypatch.setattr(runtime.backend, "create_container", create_with_log)
        rig.write("a", {"containers": [container()]})
        await eventually(lambda: rig.phase("a") == "Running")
        pod = rig.pod("a")
        assert pod is not None
        assert [status.restart_count for status in pod.status.container_statuses or ()] == [0]
        assert len(runtime.service.records.containers) == 1


async def test_a_pod_that_runs_has_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async with forgetful("stop_container", "stop_pod_sandbox") as (rig, runtime):
        rig.write("a", {"containers": [container()]})
        await eventually(lambda: rig.phase("a") == "Running")
        assert rig.node is not None
        admission = rig.node.running.managers.admission
        release, ran = admission.remove, []

        def remove(uid: str) -> None:
            ran.append(any(c.state == 1 for c in runtime.service.records.containers.values()))
            release(uid)

        monkeypatch.setattr(admission, "remove", remove)
        pod = rig.pod("a")
        assert pod is not None
        with pytest.raises(Refused, match="confirmed the stop, but still lists c as running; trying again"):
            await rig.node.kill_pod(pod, EVICTED)
        await eventually(lambda: ran)
        assert ran == [False], "what it holds was given back while it ran"
