"""What the runtimes cost: `pytest bench/bench_runtime.py`. The embedded half needs root.

Over a real socket with the package's own client; `bench_cri.py` says what of it is the client's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.cri.client import RuntimeClient
from engine.runtime.embedded import EmbeddedRuntime
from engine.runtime.hollow import HollowRuntime
from engine.testing.images import write_busybox
from engine.wire import cri_v1_pb2 as cri

numbers = itertools.count()


class Bench:
    """Drive a runtime with a client, both on one event loop."""

    def __init__(self, runtime: HollowRuntime | EmbeddedRuntime, loop: asyncio.AbstractEventLoop) -> None:
        self.runtime = runtime
        self.loop = loop
        self.client = loop.run_until_complete(self._connect())
        self.config = cri.PodSandboxConfig()

    async def _connect(self) -> RuntimeClient:
        return RuntimeClient(str(self.runtime.socket))

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    async def pod(self, containers: int = 0) -> str:
        number = next(numbers)
        self.config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=f"p{number}", uid=f"u{number}", namespace="bench"),
            linux=cri.LinuxPodSandboxConfig(cgroup_parent="/kubengine-bench"),
        )
        sandbox = await self.client.run_pod_sandbox(self.config)
        for index in range(containers):
            await self.container(sandbox, f"c{index}")
        return sandbox

    async def container(self, sandbox: str, name: str) -> str:
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name),
            image=cri.ImageSpec(image="busybox"),
            command=["sleep", "1000"],
        )
        config.linux.security_context.namespace_options.pid = cri.CONTAINER
        container = await self.client.create_container(sandbox, config, self.config)
        await self.client.start_container(container)
        return container


@pytest.fixture
def hollow(tmp_path: Path) -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    runtime = HollowRuntime(tmp_path / "r.sock")
    loop.run_until_complete(runtime.start())
    bench = Bench(runtime, loop)
    bench.run(bench.client.pull_image("busybox"))
    yield bench
    bench.run(bench.client.close())
    bench.run(runtime.stop())
    loop.close()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Bench]:
    if os.geteuid() != 0:
        pytest.skip("needs root: cgroups and namespaces")
    loop = asyncio.new_event_loop()
    runtime = EmbeddedRuntime(socket=tmp_path / "r.sock", root=tmp_path / "root", state=tmp_path / "state")
    loop.run_until_complete(runtime.start())
    loop.run_until_complete(runtime.import_image(write_busybox(tmp_path / "b.tar")))
    bench = Bench(runtime, loop)
    yield bench
    bench.run(bench.client.close())
    bench.run(runtime.purge())
    loop.close()
    for tree in Path("/sys/fs/cgroup").glob("*/kubengine-bench"):
        with contextlib.suppress(OSError):
            tree.rmdir()


Benchmark = Callable[..., Any]


@pytest.mark.benchmark(group="runtime: hollow")
def test_hollow_pod_of_two_containers(hollow: Bench, benchmark: Benchmark) -> None:
    benchmark(lambda: hollow.run(hollow.pod(2)))


@pytest.mark.benchmark(group="runtime: hollow")
def test_hollow_list_of_2000_containers(hollow: Bench, benchmark: Benchmark) -> None:
    for _ in range(1000):
        hollow.run(hollow.pod(2))
    assert len(benchmark(lambda: hollow.run(hollow.client.list_containers()))) == 2000


@pytest.mark.benchmark(group="runtime: embedded")
def test_embedded_sandbox_with_its_network(embedded: Bench, benchmark: Any) -> None:
    benchmark.pedantic(lambda: embedded.run(embedded.pod()), rounds=30)


@pytest.mark.benchmark(group="runtime: embedded")
def test_embedded_container_to_running(embedded: Bench, benchmark: Any) -> None:
    sandbox = embedded.run(embedded.pod())
    benchmark.pedantic(lambda: embedded.run(embedded.container(sandbox, f"c{next(numbers)}")), rounds=30)


@pytest.mark.benchmark(group="runtime: embedded")
def test_embedded_exec_sync(embedded: Bench, benchmark: Any) -> None:
    sandbox = embedded.run(embedded.pod())
    container = embedded.run(embedded.container(sandbox, "c"))
    benchmark.pedantic(lambda: embedded.run(embedded.client.exec_sync(container, ["true"], 10)), rounds=30)
