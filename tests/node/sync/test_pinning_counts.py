"""Pods that the node is too small for, as the CPU and memory managers count them."""

from __future__ import annotations

import os

import pytest

from engine.api.config import MemoryReservation
from engine.api.quantity import Quantity
from tests.node_rig import Rig, container
from tests.waiting import eventually


@pytest.fixture
def pinned(rig: Rig) -> Rig:
    rig.config.cpu_manager_policy = "static"
    rig.config.reserved_system_cpus = "0"
    rig.config.memory_manager_policy = "Static"
    rig.config.system_reserved = {"memory": "64Mi"}
    rig.config.reserved_memory = [MemoryReservation(0, {"memory": Quantity.parse("64Mi")})]
    return rig


def counted(rig: Rig, manager: str) -> tuple[float, float]:
    """Return the numbers of allocations that a manager tried, and of those that failed."""
    assert rig.node is not None
    registry = rig.node.registry
    requests = registry.counter(f"kubelet_{manager}_manager_pinning_requests_total", "")
    errors = registry.counter(f"kubelet_{manager}_manager_pinning_errors_total", "")
    return sum(requests.values.values()), sum(errors.values.values())


@pytest.mark.skipif((os.cpu_count() or 0) < 2, reason="a CPU that is not reserved")
@pytest.mark.parametrize(
    ("amounts", "cpus", "memory"),
    [
        ({"cpu": "1000", "memory": "16Mi"}, (1, 1), (0, 0)),
        ({"cpu": "100m", "memory": "1000Ti"}, (0, 0), (1, 1)),
    ],
    ids=["cpu", "memory"],
)
async def test_a_pod_that_the_node_is_too_small_for_is_a_failed_allocation(
    pinned: Rig, amounts: dict[str, str], cpus: tuple[int, int], memory: tuple[int, int]
) -> None:
    rig = pinned
    await rig.start()
    rig.write("big", {"containers": [container(resources={"limits": amounts})]})
    await eventually(lambda: rig.phase("big") == "Failed")
    assert (counted(rig, "cpu"), counted(rig, "memory")) == (cpus, memory)


async def test_a_burstable_pod_asks_the_managers_for_nothing(pinned: Rig) -> None:
    rig = pinned
    await rig.start()
    rig.write("big", {"containers": [container(resources={"requests": {"cpu": "1000", "memory": "1000Ti"}})]})
    await eventually(lambda: rig.phase("big") == "Failed")
    assert counted(rig, "cpu") == counted(rig, "memory") == (0, 0)
