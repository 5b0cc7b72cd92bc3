"""A pinned pod's resize on cgroup v2 under systemd, through a restart and a kubelet: 4 CPUs, 1 node."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.system.vm import kubelet_in_machine
from tests.system.vm.machine import Machine, Size
from tests.system.vm.node_in_machine import run_agent, start_agent, stop_agent
from tests.system.vm.pods_in_machine import equal, pod, value, wait_for_pods, write_pods

SIZE = Size(cpus=4, nodes=1, memory=3072)
FIELDS = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "featureGates": {"InPlacePodVerticalScalingExclusiveCPUs": True},
}
SHARED = pod("shared")  # no request: three exclusive CPUs are all that is allocatable


def pods(cpus: int) -> tuple[dict[str, Any], ...]:
    return (pod("pinned", equal(cpu=str(cpus), memory="64Mi")), SHARED)


def resize(machine: Machine, ids: dict[str, str], cpus: int, pinned: str, shared: str) -> None:
    """Resize the pod to so many CPUs, and wait until the same containers have the expected CPUs."""
    write_pods(machine, pods(cpus))
    wait_for_cpus(machine, ids, pinned, shared)
    assert wait_for_pods(machine, pods(cpus)) == ids


def wait_for_cpus(machine: Machine, ids: dict[str, str], pinned: str, shared: str) -> None:
    expected = {"pinned": pinned, "shared": shared}

    def moved() -> bool:
        return {name: value(machine, id, "cpuset.cpus.effective") for name, id in ids.items()} == expected

    machine.until(moved, 600, f"CPUs {pinned} to be exclusive")


@pytest.fixture
def ids(machine: Machine) -> dict[str, str]:
    """Return the container of a pod with one exclusive CPU and that of a shared pod, by pod name."""
    write_pods(machine, pods(1))
    run_agent(machine, FIELDS)
    ids = wait_for_pods(machine, pods(1))
    wait_for_cpus(machine, ids, "1", "0,2-3")
    return ids


def test_a_pod_grows_around_its_cpu_and_shrinks_back(machine: Machine, ids: dict[str, str]) -> None:
    resize(machine, ids, 3, "1-3", "0")
    start_agent(machine)
    assert wait_for_pods(machine, pods(3)) == ids
    wait_for_cpus(machine, ids, "1-3", "0")
    resize(machine, ids, 2, "1-2", "0,3")
    resize(machine, ids, 1, "1", "0,2-3")


@pytest.mark.skipif("KUBE_BIN" not in os.environ, reason="needs KUBE_BIN: a folder with a kubelet v1.36")
def test_a_pod_that_shrank_back_survives_a_kubelet_and_back(machine: Machine, ids: dict[str, str]) -> None:
    """A kubelet takes a static pod with another manifest for another pod, so it gets the first one back."""
    resize(machine, ids, 3, "1-3", "0")
    resize(machine, ids, 1, "1", "0,2-3")
    stop_agent(machine)
    kubelet_in_machine.start(machine)
    assert wait_for_pods(machine, pods(1)) == ids
    wait_for_cpus(machine, ids, "1", "0,2-3")
    kubelet_in_machine.stop(machine)
    start_agent(machine)
    assert wait_for_pods(machine, pods(1)) == ids
    resize(machine, ids, 3, "1-3", "0")
