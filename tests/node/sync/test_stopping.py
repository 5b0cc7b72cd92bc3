"""The end of a pod's containers: hooks at once, then regular containers, then sidecars from the last."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from engine.api.documents import convert
from engine.api.duration import RetryDelays
from engine.api.errors import Refused
from engine.api.lifecycle import PodEnd
from engine.api.pod import Pod
from engine.cgroups.disabled import NoCgroups
from engine.node.sources.pod_sink import MANIFESTS
from engine.node.sync.stopping import ends_before
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container, recorded_graces
from tests.ports import free_port
from tests.waiting import eventually

SAID = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def sidecar(name: str, **fields: Any) -> dict[str, Any]:
    return container(name, restartPolicy="Always", **fields)


def test_the_order_in_which_containers_stop():
    pod = convert(
        {
            "metadata": {"name": "p"},
            "spec": {
                "initContainers": [sidecar("a"), container("init"), sidecar("b"), sidecar("c")],
                "containers": [container("x"), container("y")],
            },
        },
        Pod,
        "p",
    )
    waits = {name: ends_before(pod, name) for name in ("x", "y", "init", "c", "b", "a")}
    assert waits == {
        "x": set(),
        "y": set(),
        "init": set(),
        "c": {"x", "y"},
        "b": {"x", "y", "c"},
        "a": {"x", "y", "b", "c"},
    }


async def test_all_hooks_begin_before_any_container_is_stopped(rig: Rig, hollow: HollowRuntime):
    """Each hook is answered when all have asked: hooks that came one after another would never end."""
    names = ("a", "b", "main")
    asked: set[str] = set()
    running_then: list[str] = []
    everyone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.add((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
        if len(asked) == len(names):
            running_then.extend(c.config.metadata.name for c in containers() if not c.finished_at)
            everyone.set()
        await everyone.wait()
        writer.write(SAID)
        await writer.drain()
        writer.close()

    def containers() -> list[Any]:
        return list(hollow.service.records.containers.values())

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    def hooked(name: str) -> dict[str, Any]:
        return {"lifecycle": {"preStop": {"httpGet": {"path": f"/{name}", "port": port}}}}

    async with server:
        await rig.start()
        rig.write(
            "hooked",
            {
                "initContainers": [sidecar(name, **hooked(name)) for name in ("a", "b")],
                "containers": [container("main", **hooked("main"))],
                "terminationGracePeriodSeconds": 600,
            },
            annotations={"runtime.kubengine.dev/stop-after": "20ms"},
        )
        await eventually(lambda: rig.phase("hooked") == "Running")
        await rig.node.kill_pod(rig.pod("hooked"), PodEnd("Evicted", "test"))
        await eventually(lambda: len(containers()) == len(names) and all(c.finished_at for c in containers()))
    assert asked == {"/a", "/b", "/main"}
    assert sorted(running_then) == ["a", "b", "main"]
    ended = sorted(containers(), key=lambda c: c.finished_at)
    assert [c.config.metadata.name for c in ended] == ["main", "b", "a"]
    assert "FailedPreStopHook" not in rig.reasons()


async def test_a_sidecar_waits_for_its_turn_only_within_its_grace_period(rig: Rig, hollow: HollowRuntime):
    """The main container uses up the grace period, so the sidecar is stopped while it still runs."""
    running_then: list[str] = []
    stop = hollow.backend.stop_container

    async def stop_container(stopped: Any, grace: float) -> None:
        if stopped.config.metadata.name == "side":
            records = hollow.service.records.containers.values()
            running_then.extend(c.config.metadata.name for c in records if not c.finished_at)
            told.set()
        else:
            await told.wait()
        await stop(stopped, grace)

    told = asyncio.Event()
    hollow.backend.stop_container = stop_container  # type: ignore[method-assign]
    await rig.start()
    spec = {"initContainers": [sidecar("side")], "containers": [container("main")]}
    rig.write("slow", spec)
    await eventually(lambda: rig.phase("slow") == "Running")
    ending = asyncio.create_task(rig.node.kill_pod(rig.pod("slow"), PodEnd("Evicted", "test")))
    await eventually(lambda: running_then)
    assert sorted(running_then) == ["main", "side"]
    await ending


async def test_a_hook_runs_without_a_grace_period_only_when_the_whole_pod_ends(
    rig: Rig, hollow: HollowRuntime
) -> None:
    """As in a kubelet: a restart takes 0 seconds as they are, and the end of a pod has a second at least."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
        writer.write(SAID)
        await writer.drain()
        writer.close()

    graces = recorded_graces(hollow)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    def write(name: str, **fields: Any) -> Path:
        hook = {"preStop": {"httpGet": {"path": f"/{name}", "port": port}}}
        spec = {"containers": [container(lifecycle=hook, **fields)], "terminationGracePeriodSeconds": 0}
        return rig.write(name, spec)

    closed = {"host": "127.0.0.1", "port": free_port()}
    async with server:
        node = await rig.start()
        manifest = write("ends")
        write("evicted")
        write("restarts", livenessProbe={"tcpSocket": closed, "periodSeconds": 1, "failureThreshold": 1})
        await eventually(lambda: graces)
        assert (asked, graces) == ([], [2])
        await eventually(lambda: {rig.phase("ends"), rig.phase("evicted")} == {"Running"})
        manifest.unlink()
        await eventually(lambda: asked)
        evicted = rig.pod("evicted")
        assert evicted is not None
        await node.running.pods.kill(evicted, PodEnd("Evicted", "told", grace_period_seconds=0))
    assert asked == ["/ends", "/evicted"]


async def test_a_container_has_two_seconds_even_if_its_pod_gets_less_while_it_ends(
    rig: Rig, hollow: HollowRuntime
) -> None:
    graces: list[float] = []
    stop, sooner = hollow.backend.stop_container, asyncio.Event()

    async def stop_container(stopped: Any, grace: float) -> None:
        graces.append(grace)
        if len(graces) > 1:
            sooner.set()
        await sooner.wait()
        await stop(stopped, grace)

    hollow.backend.stop_container = stop_container  # type: ignore[method-assign]
    node = await rig.start()
    rig.write("p", {"containers": [container()]})
    await eventually(lambda: rig.phase("p") == "Running")
    pod = rig.pod("p")
    assert pod is not None
    node.running.pods.remove_pod(pod.uid, MANIFESTS, 30)
    await eventually(lambda: graces)
    node.running.pods.remove_pod(pod.uid, MANIFESTS, 1)
    await eventually(sooner.is_set)
    assert graces == [30, 2]


@pytest.mark.parametrize(("refusals", "events"), [(1, 0), (2, 1), (4, 1)])
async def test_a_cgroup_that_is_busy_for_a_moment_causes_no_event(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, refusals: int, events: int
):
    tries = 0

    def remove_pod(self: NoCgroups, uid: str, *, kill: bool = True, wait: float = 0.0) -> None:
        nonlocal tries
        tries += 1
        if tries <= refusals:
            raise Refused("processes are left in it", subject=uid, errno=errno.EBUSY)

    monkeypatch.setattr(NoCgroups, "remove_pod", remove_pod)
    monkeypatch.setattr("engine.node.sync.sync.RETRIES", RetryDelays(0.01, 0.01))
    await rig.start()
    manifest = rig.write("p", {"containers": [container()]})
    await eventually(lambda: rig.phase("p") == "Running")
    manifest.unlink()
    await eventually(lambda: tries > refusals)
    assert rig.reasons().count("FailedSync") == events
