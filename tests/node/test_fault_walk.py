"""Fail the n-th operation, for every n: a pod's whole life with one fault in it, and the pods are right.

An agent starts, runs two pods, collects garbage, evicts one pod, goes and comes back, and lets the other
go. In every run one file operation or one call to the runtime fails once. Without `KUBENGINE_EVERY_FAULT`
(`make chaos`) that is each place of the code that touches a file, and each method's first call.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from engine.api.errors import KubengineError
from engine.api.lifecycle import PodEnd
from engine.containers.manager import ContainerGC
from engine.eviction.manager import EvictionManager
from engine.images.manager import ImageManager
from engine.node import image_pull
from engine.runtime.hollow import HollowRuntime
from engine.runtime.image_service import ImageService
from engine.runtime.records import READY, RUNNING
from engine.runtime.server import CriServer
from tests.node.faults import ERRORS, KINDS, PARTIAL, FailingService, FileFault, current, file_faults
from tests.node_bench import Bench, container
from tests.waiting import eventually

AT_ONCE = 20
WHOLE = bool(os.environ.get("KUBENGINE_EVERY_FAULT"))
EVICTED = PodEnd("Evicted", "the node was short of it", grace_period_seconds=1)


class Life:
    """One agent after another on a hollow runtime of their own, from first start to last end."""

    def __init__(self, directory: Path, method: str = "", at: int = 1, kind: str = KINDS[0]) -> None:
        self.runtime = HollowRuntime(directory / "cri.sock")
        self.calls: dict[str, int] = {}

        def failing(service: object) -> FailingService:
            return FailingService(service, self.calls, method, at, kind)

        services = {"RuntimeService": self.runtime.service, "ImageService": ImageService(self.runtime.images)}
        self.runtime._server = CriServer(self.runtime.socket, {k: failing(s) for k, s in services.items()})
        # What hangs ends by the deadline; what doesn't must never meet it.
        deadline = 2.0 if kind == "hangs" else 60.0
        self.bench = Bench(directory, self.runtime.socket, runtime_request_timeout=deadline)
        self.errors: list[Exception] = []

    async def whole(self, fault: FileFault | None = None) -> None:
        self.bench.write("a", {"containers": [container()]})
        self.bench.write("b", {"containers": [container()]})
        async with self.runtime:
            token = current.set(fault)
            try:
                await self._live()
            finally:
                if self.bench.node is not None:
                    await self.bench.node.stop()
                current.reset(token)

    async def _live(self) -> None:
        await self._start()
        await eventually(self.both_run)
        await self._look_after()
        before = self.running("a")
        pod = self.bench.pod("b")
        assert self.bench.node is not None
        assert pod is not None
        try:
            await self.bench.node.kill_pod(pod, EVICTED)
        except KubengineError as error:
            self.errors.append(error)
        await eventually(self.b_has_failed)
        await self._stop()
        await self._start()
        await eventually(self.a_runs_alone)
        assert self.running("a") == before, "its container was started again"
        await eventually(self.well)
        for name in "ab":
            (self.bench.manifests / f"{name}.yaml").unlink()
        await eventually(self.all_gone)
        await self._stop()
        assert not list(self.bench.root.rglob(".*.new"))

    async def _start(self) -> None:
        try:
            await self.bench.start()
        except (KubengineError, OSError) as error:
            self.errors.append(error)
            await self._stop()
            await self.bench.start()

    async def _stop(self) -> None:
        try:
            await self.bench.stop()
        except (KubengineError, OSError) as error:
            self.errors.append(error)

    async def _look_after(self) -> None:
        assert self.bench.node is not None
        rooms = self.bench.node.rooms
        await cast(ImageManager, rooms["images"]).garbage_collect()
        await cast(ContainerGC, rooms["containers"]).garbage_collect()
        try:
            await cast(EvictionManager, rooms["eviction"]).synchronize()
        except (KubengineError, OSError) as error:
            self.errors.append(error)

    def running(self, name: str) -> list[str]:
        records = self.runtime.service.records.containers.values()
        mine = [c for c in records if c.sandbox.config.metadata.name == f"{name}-n1"]
        return [c.id for c in mine if c.state == RUNNING]

    def both_run(self) -> bool:
        sandboxes = [s for s in self.runtime.service.records.sandboxes.values() if s.state == READY]
        return len(sandboxes) == 2 and all(
            self.bench.phase(name) == "Running" and len(self.running(name)) == 1 for name in "ab"
        )

    def b_has_failed(self) -> bool:
        return self.bench.phase("b") == "Failed" and not self.running("b")

    def a_runs_alone(self) -> bool:
        return self.bench.phase("a") == "Running" and self.b_has_failed()

    def well(self) -> bool:
        assert self.bench.node is not None
        return not [error for _, error in self.bench.node.healthz() if error]

    def all_gone(self) -> bool:
        assert self.bench.node is not None
        records = self.runtime.service.records
        ready = [s for s in records.sandboxes.values() if s.state == READY]
        return not self.bench.node.pods() and not ready and not any(map(self.running, "ab"))


async def walk(lives: Iterable[Coroutine[Any, Any, str]]) -> None:
    """Live them all, some at once; fails saying which went wrong and how."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(life: Coroutine[Any, Any, str]) -> str:
        async with room:
            return await life

    tasks = [asyncio.create_task(one(life)) for life in lives]
    before = asyncio.all_tasks() - set(tasks)
    wrong = [text for text in await asyncio.gather(*tasks) if text]
    assert not wrong, f"{len(wrong)} of {len(tasks)}:\n" + "\n".join(wrong)
    gc.collect()
    assert asyncio.all_tasks() <= before


async def with_file_fault(fault: FileFault) -> str:
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        life = Life(Path(short))
        try:
            await life.whole(fault)
            text = _unnamed(life, "/")
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        held = _held(short)
    where = fault.places[fault.at - 1] if fault.met else "nowhere"
    text = "; ".join(filter(None, (text, held)))
    return f"operation {fault.at} fails with {fault.error} ({where}): {text}" if text else ""


async def with_call_fault(method: str, at: int, kind: str) -> str:
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        life = Life(Path(short), method, at, kind)
        try:
            await life.whole()
            text = _unnamed(life, "CRI ")
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        held = _held(short)
    text = "; ".join(filter(None, (text, held)))
    return f"call {at} of {method} {kind}: {text}" if text else ""


def _unnamed(life: Life, thing: str) -> str:
    return "; ".join(f"does not name it: {error}" for error in life.errors if thing not in str(error))


def _held(directory: str) -> str:
    """Descriptors of what is below the directory."""
    found = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = str(Path(entry.path).readlink())
        except OSError:
            continue
        if target.startswith(directory):
            found.append(target)
    return f"still open: {found}" if found else ""


@pytest.mark.timeout(0 if WHOLE else 600)
async def test_any_file_operation_may_fail_once() -> None:
    with file_faults():
        seen = FileFault()
        assert not await with_file_fault(seen)
        operations = range(1, len(seen.places) + 1)
        if WHOLE:
            faults = [FileFault(at, error) for at in operations for error in (*ERRORS, PARTIAL)]
        else:
            first = {place: at for at, place in reversed(list(enumerate(seen.places, 1)))}
            faults = [
                FileFault(at, (*ERRORS, PARTIAL)[number % 5]) for number, at in enumerate(first.values())
            ]
        assert len(faults) > 50
        await walk(map(with_file_fault, faults))


@pytest.mark.timeout(0 if WHOLE else 600)
async def test_any_call_to_the_runtime_may_fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_pull, "PULL_DEADLINE_SECONDS", 20.0)
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        life = Life(Path(short))
        await life.whole()
    calls = life.calls
    assert {"run_pod_sandbox", "create_container", "stop_container", "list_images"} <= calls.keys()
    await walk(
        with_call_fault(method, at, kind)
        for method, count in sorted(calls.items())
        for at in range(1, (count if WHOLE else 1) + 1)
        for kind in KINDS
    )
