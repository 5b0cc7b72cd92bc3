"""What a relist of the runtime costs the agent, its lists' bytes at hand: `pytest bench/bench_relist.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from engine.cri import labels
from engine.cri.client import RuntimeClient
from engine.metrics import Registry
from engine.node.runtime_view.runtime_watch import RuntimeWatch
from engine.wire import cri_v1_pb2 as cri

Benchmark = Any
Read = TypeVar("Read")


class Lists:
    """Hold a runtime's lists of `count` pods with one running container each and containerd's fields."""

    def __init__(self, count: int) -> None:
        self.sandboxes = {
            f"{number:064x}": cri.PodSandbox(
                id=f"{number:064x}",
                metadata=cri.PodSandboxMetadata(name=f"pod-{number}", uid=_uid(number), namespace="default"),
                created_at=10**18,
                labels=_labels(number),
                annotations={"kubernetes.io/config.source": "api"},
            )
            for number in range(count)
        }
        self.containers = {
            f"c{number:063x}": cri.Container(
                id=f"c{number:063x}",
                pod_sandbox_id=f"{number:064x}",
                metadata=cri.ContainerMetadata(name="main"),
                image=cri.ImageSpec(image="sha256:" + "a" * 64),
                image_ref="sha256:" + "a" * 64,
                state=cri.CONTAINER_RUNNING,
                created_at=10**18,
                labels={**_labels(number), labels.CONTAINER_NAME: "main"},
                annotations={labels.HASH: "12345678", labels.RESTART_COUNT: "0", labels.POD_GRACE: "30"},
            )
            for number in range(count)
        }
        self._sandboxes = cri.ListPodSandboxResponse(items=self.sandboxes.values()).SerializeToString()
        self._containers = cri.ListContainersResponse(containers=self.containers.values()).SerializeToString()

    async def read_pod_sandboxes(self, read: Callable[[bytes], Read]) -> Read:
        return read(self._sandboxes)

    async def read_containers(self, read: Callable[[bytes], Read]) -> Read:
        return read(self._containers)

    async def pod_sandbox_status(self, sandbox: str) -> cri.PodSandboxStatusResponse:
        status = cri.PodSandboxStatus(id=sandbox, labels=self.sandboxes[sandbox].labels)
        return cri.PodSandboxStatusResponse(status=status)

    async def container_status(self, container: str) -> cri.ContainerStatusResponse:
        known = self.containers[container]
        status = cri.ContainerStatus(id=container, state=known.state, started_at=1, labels=known.labels)
        return cri.ContainerStatusResponse(status=status)


@pytest.mark.parametrize("count", [60, 1000])
@pytest.mark.benchmark(group="relist, nothing changed, processor time", timer=time.process_time)
def test_relist_agent(benchmark: Benchmark, count: int) -> None:
    loop = asyncio.new_event_loop()

    async def watch() -> RuntimeWatch:
        runtime = cast("RuntimeClient", Lists(count))
        return RuntimeWatch(runtime, on_change=lambda _: None, clock=time.time, registry=Registry())

    watched = loop.run_until_complete(watch())
    for _ in range(2):
        loop.run_until_complete(watched.relist())
    benchmark.pedantic(
        lambda: loop.run_until_complete(watched.relist()), rounds=50, iterations=5, warmup_rounds=2
    )
    loop.close()


def _labels(number: int) -> dict[str, str]:
    return {
        labels.POD_UID: _uid(number),
        labels.POD_NAME: f"pod-{number}",
        labels.POD_NAMESPACE: "default",
    }


def _uid(number: int) -> str:
    return f"8a7c2c5e-1d3f-4d1e-9c1b-{number:012d}"
