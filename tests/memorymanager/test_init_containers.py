"""What init containers reserve, until later containers start, and when their pod is admitted again."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api.pod import EphemeralContainer, Pod
from engine.memorymanager.manager import MemoryManager
from engine.topologymanager.policy import ANYWHERE
from tests.memorymanager.test_lost_allocations import GIB, Rig, pod_of


def pod_with_init_containers(*gib: int, main: int) -> Pod:
    """Build a Guaranteed pod of init containers i0, i1, … and the main container c."""
    listed = []
    for number, size in enumerate(gib):
        amounts = {"cpu": "250m", "memory": f"{size}Gi"}
        resources = {"limits": amounts, "requests": amounts}
        listed.append({"name": f"i{number}", "image": "x", "resources": resources})
    return pod_of("p", main, initContainers=listed)


def admit(manager: MemoryManager, pod: Pod) -> None:
    for container in pod.all_containers:
        manager.container_hints(pod, container)
        manager.allocate(pod, container, ANYWHERE)


def run(manager: MemoryManager, pod: Pod) -> None:
    for container in pod.all_containers:
        manager.container_started(pod, container)


def reserved(manager: MemoryManager) -> list[int]:
    """Return the GiB that are reserved on each node, after comparing them with the blocks."""
    assert manager.policy is not None
    state = manager.policy.state
    for node, one in state.nodes.items():
        blocks = [block for _, _, held in state.entries() for block in held if block.nodes == (node,)]
        assert one.number_of_assignments == len(blocks)
        assert one.memory_map["memory"].reserved == sum(block.size for block in blocks)
    return [one.memory_map["memory"].reserved // GIB for one in state.nodes.values()]


@pytest.mark.parametrize(
    ("init", "main", "again"),
    [([5], 6, 6), ([5, 6], 6, 6), ([7], 5, 7), ([6, 7, 2], 3, 7)],
)
async def test_init_containers_use_what_later_containers_have(
    tmp_path: Path, init: list[int], main: int, again: int
) -> None:
    rig = Rig(tmp_path)
    pod, other = pod_with_init_containers(*init, main=main), pod_of("other", 7)
    async with rig.agent() as manager:
        manager.allocate(other, other.spec.containers[0], ANYWHERE)
        admit(manager, pod)
        assert reserved(manager) == [7, max(*init, main)]
        run(manager, pod)
        assert reserved(manager) == [7, main]
    async with rig.agent() as manager:
        admit(manager, pod)
        assert reserved(manager) == [7, again]
        assert {manager.mems(pod, one.name) for one in pod.all_containers} == {"1"}
        run(manager, pod)
        assert reserved(manager) == [7, main]
        manager.release("p")
        assert reserved(manager) == [7, 0]


async def test_an_ephemeral_container_frees_nothing_of_init_containers(tmp_path: Path) -> None:
    """It may start while they run, to find out why they do not end."""
    rig = Rig(tmp_path)
    debug = EphemeralContainer(name="debug", image="x")
    pod = pod_with_init_containers(5, main=3)
    pod.spec.ephemeral_containers = [debug]
    async with rig.agent() as manager:
        admit(manager, pod)
        manager.container_started(pod, pod.init_containers[0])
        manager.container_started(pod, debug)
        assert reserved(manager) == [5, 0]
