"""Where containers run beside pods with exclusive CPUs, on a machine of eight CPUs that exists for the agent
only.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.cri.client import RuntimeClient, Unimplemented
from engine.memorymanager.checkpoint import decode, encode
from engine.memorymanager.state import Block
from engine.runtime.hollow import PREFIX, HollowRuntime
from tests.node.sync.test_resizing_pinned_pods import cpuset, pinned, shared, write
from tests.node_rig import Rig, container
from tests.waiting import eventually

__all__ = ["pinned"]


async def erase(hollow: HollowRuntime, name: str) -> None:
    """Remove a pod from the runtime, as a reboot does."""
    client = RuntimeClient(str(hollow.socket), timeout=10)
    try:
        for sandbox in list(hollow.service.records.sandboxes.values()):
            if sandbox.config.metadata.name == f"{name}-n1":
                await client.stop_pod_sandbox(sandbox.id)
                await client.remove_pod_sandbox(sandbox.id)
    finally:
        await client.close()


async def _no_events(self: RuntimeClient) -> AsyncIterator[Any]:
    raise Unimplemented("unknown method GetContainerEvents")
    yield


async def test_a_container_that_starts_after_the_pool_has_shrunk_leaves_exclusive_cpus(
    pinned: Rig, hollow: HollowRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration is older than the exclusive CPUs, and no event tells that it has started."""
    monkeypatch.setattr(RuntimeClient, "events", _no_events)
    create, go_on = hollow.backend.create_container, asyncio.Event()

    async def slow_create(made: Any, image: Any) -> None:
        if made.config.labels["io.kubernetes.pod.name"].startswith("shared"):
            await go_on.wait()
        await create(made, image)

    monkeypatch.setattr(hollow.backend, "create_container", slow_create)
    rig = pinned
    await rig.start()
    shared(rig)
    await eventually(lambda: "CreateContainer" in hollow.counts())
    write(rig, "alone", 2)
    await eventually(lambda: rig.phase("alone") == "Running")
    assert cpuset(rig, hollow, "alone") == "1,5"
    go_on.set()
    await eventually(lambda: rig.phase("shared") == "Running")
    await eventually(lambda: cpuset(rig, hollow, "shared") == "0,2-4,6-7", 10)


@pytest.mark.parametrize("why", ["deleted", "deleted with its directory", "rejected"])
async def test_cpus_of_a_pod_that_does_not_come_back_are_shared_again(
    pinned: Rig, hollow: HollowRuntime, why: str
) -> None:
    """The state file still lists a pod that went while no agent was there, and no other pod is admitted."""
    rig = pinned
    await rig.start()
    shared(rig)
    await eventually(lambda: rig.phase("shared") == "Running")
    write(rig, "alone", 2)
    await eventually(lambda: rig.phase("alone") == "Running")
    await eventually(lambda: cpuset(rig, hollow, "shared") == "0,2-4,6-7", 10)
    pod = rig.pod("alone")
    assert pod is not None
    uid = pod.uid
    await rig.stop()
    await erase(hollow, "alone")
    if why == "rejected":
        rig.config.max_pods = 1
    else:
        (rig.manifests / "alone.yaml").unlink()
    if why == "deleted with its directory":
        shutil.rmtree(rig.root / "pods" / uid)
    await rig.start()
    await eventually(lambda: rig.phase("shared") == "Running")
    await eventually(lambda: cpuset(rig, hollow, "shared") == "0-7", 10)
    await eventually(lambda: rig.phase("alone") == ("Failed" if why == "rejected" else ""), 10)
    state = rig.root / "cpu_manager_state"
    await eventually(lambda: b'"defaultCpuSet":"0-7","checksum"' in state.read_bytes(), 10)


def memory_file(rig: Rig) -> Path:
    return rig.root / "memory_manager_state"


async def test_init_containers_that_have_ended_reserve_nothing_after_a_takeover(
    pinned: Rig, hollow: HollowRuntime
) -> None:
    """A kubelet that starts again gives memory to all containers of running pods that have none."""
    rig = pinned
    await rig.start()
    spec = {
        "initContainers": [container("init", resources={"limits": {"cpu": "1", "memory": "32Mi"}})],
        "containers": [container(resources={"limits": {"cpu": "1", "memory": "16Mi"}})],
    }
    rig.write("p", spec, annotations={f"{PREFIX}exit-after.init": "1ms"})
    await eventually(lambda: rig.phase("p") == "Running")
    await rig.stop()

    found = decode(memory_file(rig).read_bytes())
    (containers,) = found.entries.values()
    assert containers.keys() == {"c"}
    table = found.machine_state[0].memory_map["memory"]
    containers["init"] = [Block((0,), "memory", 32 << 20)]
    found.machine_state[0].number_of_assignments += 1
    table.reserved += 32 << 20
    table.free -= 32 << 20
    memory_file(rig).write_bytes(encode(found))

    await rig.start()
    await eventually(lambda: rig.phase("p") == "Running")
    await eventually(lambda: b'"init"' not in memory_file(rig).read_bytes(), 10)
    (containers,) = decode(memory_file(rig).read_bytes()).entries.values()
    assert containers["c"] == [Block((0,), "memory", 16 << 20)]
