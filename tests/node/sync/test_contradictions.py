"""A runtime that says once of what runs that there is no such thing: its lists decide."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.api.lifecycle import PodEnd
from engine.runtime.hollow import HollowRuntime
from engine.runtime.image_service import ImageService
from engine.runtime.server import CriServer
from tests.node.faults import FailingService
from tests.node_rig import Rig, container
from tests.waiting import eventually

EVICTED = PodEnd("Evicted", "the node was short of it")


@asynccontextmanager
async def forgetful(*methods: str) -> AsyncIterator[tuple[Rig, HollowRuntime]]:
    """Start a node on a runtime whose `methods` answer "not found" at their first call."""
    with tempfile.TemporaryDirectory(prefix="kc-") as short:
        runtime = HollowRuntime(Path(short) / "cri.sock")
        service: object = runtime.service
        for method in methods:
            service = FailingService(service, {}, method, 1, "not found")
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
