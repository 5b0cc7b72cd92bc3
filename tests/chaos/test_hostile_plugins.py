"""Run hostile storage drivers, registration sockets and credential programs beside a real agent.

The agent must go on: it renews the lease, registers a good driver that serves a pod, keeps memory and
descriptors bounded, and touches no file outside of the driver's volume.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from engine.host.trees import remove_tree
from engine.node.images import providers
from engine.testing.csi_driver import SampleCsiDriver
from engine.wire import csi_v1_pb2 as wire
from engine.wire import pluginregistration_v1_pb2 as registration
from engine.wire.pluginregistration_v1_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from tests.chaos.conftest import MakeMember, Member
from tests.endless import EndlessPeer, from_listener, listening_at
from tests.leaks import nothing_leaks
from tests.node.images.test_image_access import write_programs
from tests.node_rig import container
from tests.server.test_endless_peers import HTTP2
from tests.waiting import eventually

__all__ = ["nothing_leaks"]

pytestmark = pytest.mark.root

DRIVER = "sample.csi.example.com"
STORAGE = "/apis/storage.k8s.io/v1"
SPEC = {
    "attachRequired": False,
    "podInfoOnMount": False,
    "volumeLifecycleModes": ["Ephemeral"],
    "fsGroupPolicy": "ReadWriteOnceWithFSType",
    "requiresRepublish": False,
}
MOST_GROWTH = 48 << 10
"""KiB; one answer may be 16 MB, and several drivers answer at once."""
HUGE = 12 << 20


class Liar(RegistrationServicer):
    """Serve a registration socket that answers GetInfo with `info`."""

    def __init__(self, **info: Any) -> None:
        self._info = info
        self.statuses: list[registration.RegistrationStatus] = []

    async def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        return registration.PluginInfo(**self._info)

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        self.statuses.append(request)
        return registration.RegistrationStatusResponse()


@asynccontextmanager
async def registering(path: Path, **info: Any) -> AsyncIterator[Liar]:
    liar, server = Liar(**info), grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    add_RegistrationServicer_to_server(liar, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield liar
    finally:
        await server.stop(None)
        path.unlink(missing_ok=True)


def csi(**info: Any) -> dict[str, Any]:
    return {"type": "CSIPlugin", "name": DRIVER, "endpoint": "/x", "supported_versions": ["1.0.0"], **info}


def odd_files(registry: Path, outside: Path) -> None:
    """Fill the registry with files that are no sockets, and links that lead elsewhere."""
    (registry / "file.sock").write_bytes(b"x" * 1000)
    os.mkfifo(registry / "fifo.sock")
    (registry / "loop.sock").symlink_to(registry / "loop.sock")
    (registry / "gone.sock").symlink_to(outside / "nothing")
    (registry / "out").symlink_to(outside, target_is_directory=True)
    (registry / "around").symlink_to(registry, target_is_directory=True)
    Path(os.fsdecode(os.fsencode(registry) + b"/\xff.sock")).touch()


async def check_good_driver(node: Member, directory: Path, name: str = "good.csi.example.com") -> None:
    """Check that a well-behaved driver registers, and serves a volume of a pod."""
    with contextlib.suppress(Exception):  # it may exist
        node.server.create(f"{STORAGE}/csidrivers", {"metadata": {"name": name}, "spec": SPEC})
    driver = SampleCsiDriver(directory, node.agent.root / "plugins_registry", name)
    await driver.start()
    try:
        await eventually(lambda: any(each.plugin_registered for each in driver.status))
        mounts = [{"name": "v", "mountPath": "/v"}]
        volumes = [{"name": "v", "csi": {"driver": name}}]
        await node.cluster.run("good", containers=[container(volumeMounts=mounts)], volumes=volumes)
        await node.cluster.ready("good")
        await node.cluster.delete("good")
        await node.cluster.gone("good")
    finally:
        await driver.stop()


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("p")


async def test_registration_sockets(member: MakeMember, short: Path) -> None:
    (short / "private").write_text("private")
    async with member() as node, AsyncExitStack() as stack:
        registry = node.agent.root / "plugins_registry"
        await eventually(registry.is_dir)
        await check_good_driver(node, short / "d1")
        rss, descriptors = node.rss, node.descriptors
        odd_files(registry, short)
        for number in range(50):
            silent = stack.enter_context(listening_at(registry / f"silent-{number}.sock"))
            assert silent.fileno() >= 0
        for kind, (begin, data) in HTTP2.items():
            listener = stack.enter_context(listening_at(registry / f"{kind}.sock"))
            await stack.enter_async_context(EndlessPeer(from_listener(listener), data, begin=begin))
        garbage = stack.enter_context(listening_at(registry / "garbage.sock"))
        await stack.enter_async_context(EndlessPeer(from_listener(garbage), b"\xff\x00HTTP/9 200\r\n"))
        lies = {
            "type": csi(type="x" * 1000),
            "name": csi(name="../../../etc"),
            "huge": csi(name="n" * HUGE),
            "versions": csi(supported_versions=[f"1.0.{n}" for n in range(100_000)]),
            "endpoint": csi(endpoint=str(short / "private")),
            "none": csi(endpoint=""),
            "itself": csi(endpoint=str(registry / "itself.sock")),
            "device": csi(type="DevicePlugin", name="\0", supported_versions=["v1beta1"]),
            "claims": csi(type="DRAPlugin", endpoint="/../x", supported_versions=["\x1b[31m"]),
        }
        liars = {
            name: await stack.enter_async_context(registering(registry / f"{name}.sock", **info))
            for name, info in lies.items()
        }
        await check_good_driver(node, short / "d2", "other.csi.example.com")
        await node.wait_for_renewals()
        await eventually(lambda: all(liars[name].statuses for name in ("type", "name", "versions")))
        assert not [
            name for name, liar in liars.items() if any(each.plugin_registered for each in liar.statuses)
        ]
        assert node.rss - rss < MOST_GROWTH
        assert node.unready() == []
        await stack.aclose()
        for path in registry.iterdir():
            path.unlink()
        await eventually(lambda: node.descriptors <= descriptors + 10)
        await check_good_driver(node, short / "d3", "third.csi.example.com")
        assert (short / "private").read_text() == "private"
        assert "Traceback" not in node.agent.log()
        assert len(node.agent.log()) < 4 << 20


class Hostile(SampleCsiDriver):
    """Serve as a driver whose NodePublishVolume runs `worst`, if that is set."""

    worst: Callable[[Any, Any], Any] | None = None

    async def NodePublishVolume(self, request: Any, context: Any) -> Any:
        if self.worst is not None:
            return await self.worst(request, context)
        return await super().NodePublishVolume(request, context)


def worst_of(victim: Path) -> dict[str, Callable[[Any, Any], Any]]:
    async def says_much(request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.INTERNAL, "x\n\x1b[31m" * 400_000)

    async def leaves_a_link(request: Any, context: Any) -> Any:
        target = Path(request.target_path)
        with contextlib.suppress(OSError):
            target.rmdir()
        with contextlib.suppress(FileExistsError):
            target.symlink_to(victim, target_is_directory=True)
        return wire.NodePublishVolumeResponse()

    async def leaves_a_file(request: Any, context: Any) -> Any:
        with contextlib.suppress(OSError):
            Path(request.target_path).write_text("no directory")
        return wire.NodePublishVolumeResponse()

    async def leaves_directories(request: Any, context: Any) -> Any:
        """Nest directories deeper than a path may be long."""
        Path(request.target_path).mkdir(parents=True, exist_ok=True)
        below = os.open(request.target_path, os.O_RDONLY)
        for _ in range(200):
            with contextlib.suppress(FileExistsError):
                os.mkdir("n" * 100, dir_fd=below)
            below, above = os.open("n" * 100, os.O_RDONLY, dir_fd=below), below
            os.close(above)
        os.close(below)
        return wire.NodePublishVolumeResponse()

    return {each.__name__: each for each in (says_much, leaves_a_link, leaves_a_file, leaves_directories)}


@pytest.mark.parametrize("kind", worst_of(Path()))
async def test_storage_drivers(member: MakeMember, short: Path, kind: str) -> None:
    victim = short / "victim"
    victim.mkdir()
    (victim / "file").write_text("private")
    async with member() as node:
        driver = Hostile(short / "d", node.agent.root / "plugins_registry", DRIVER)
        node.server.create(f"{STORAGE}/csidrivers", {"metadata": {"name": DRIVER}, "spec": SPEC})
        await driver.start()
        try:
            await eventually(lambda: any(each.plugin_registered for each in driver.status))
            driver.worst = worst_of(victim)[kind]
            mounts = [{"name": "v", "mountPath": "/v"}]
            volumes = [{"name": "v", "csi": {"driver": DRIVER}}]
            rss = node.rss
            await node.cluster.run("p", containers=[container(volumeMounts=mounts)], volumes=volumes)
            await node.wait_for_renewals()
            await check_good_driver(node, short / "d2")
            assert node.rss - rss < MOST_GROWTH
            await node.cluster.delete("p")
            await node.wait_for_renewals()
            assert (victim / "file").read_text() == "private"
            driver.worst = None
            for each in (node.agent.root / "pods").glob("*/volumes/kubernetes.io~csi/v/mount"):
                remove_tree(each)  # what only its maker may take away
            await node.cluster.gone("p")
            assert (victim / "file").read_text() == "private"
            assert "Traceback" not in node.agent.log()
            assert len(node.agent.log()) < 1 << 20
        finally:
            await driver.stop()


PROGRAMS = {
    "prints without end": "exec cat /dev/zero",
    "prints 3 MB": "head -c 3000000 /dev/zero | tr '\\0' x",
    "prints garbage": "head -c 1000 /dev/urandom",
    "hangs": "exec sleep 1000",
    "leaves a child that holds its output": "(trap '' TERM HUP; sleep 1000) & exit 0",
    "leaves a child in a session of its own": "setsid sh -c 'sleep 30' & exit 0",
    "ends by a signal": "kill -9 $$",
    "does not read": "exec <&-; sleep 0.1; exit 1",
    "complains without end": "cat /dev/zero >&2",
    "nests deeply": 'printf \'{"apiVersion": \'; head -c 900000 /dev/zero | tr "\\0" "["',
}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_credential_programs(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect that no program returns credentials within its time, and that the loop stays responsive."""
    monkeypatch.setattr(providers, "PROGRAM_SECONDS", 1.0)
    config = write_programs(tmp_path, script=f"#!/bin/sh\n{PROGRAMS[name]}\n")
    programs = providers.load_programs(config, tmp_path / "bin", lambda: 0.0)
    waited = 0

    async def others() -> None:
        nonlocal waited
        while True:
            await asyncio.sleep(0)
            waited += 1

    beside = asyncio.create_task(others())
    try:
        assert await programs.credentials("r.example.com/a") == []
    finally:
        beside.cancel()
    assert waited > 0, "the loop goes round meanwhile"
