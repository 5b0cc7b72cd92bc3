"""Exclusive CPUs and memory of one NUMA node on cgroup v2 under systemd: 4 CPUs, 2 nodes."""

from __future__ import annotations

import os

import pytest

from tests.system.vm import kubelet_in_machine
from tests.system.vm.machine import Machine, Size
from tests.system.vm.node_in_machine import run_agent, start_agent, stop_agent
from tests.system.vm.pods_in_machine import WAIT, equal, pod, value, wait_for_pods, write_pods

SIZE = Size(cpus=4, nodes=2, memory=3072)
FIELDS = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "memoryManagerPolicy": "Static",
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
    "topologyManagerPolicy": "single-numa-node",
}
FIRST = "grep -E '_allowed_list' /proc/self/status > /host/{0}; " + WAIT
"""Writes what the container's first process may use, and then waits."""

PINNED = pod("pinned", equal(cpu="2", memory="64Mi"), script=FIRST.format("pinned"))
SHARED = pod("shared", {"requests": {"cpu": "100m"}}, script=FIRST.format("shared"))
PODS = (PINNED, SHARED)
EXPECTED = {"pinned": ("2-3", "1"), "shared": ("0-1", "0-1")}
"""CPUs and NUMA nodes of each: of the two nodes, only the second has two CPUs that are not reserved."""


@pytest.fixture
def pinned(machine: Machine) -> dict[str, str]:
    """Return the containers of a pinned and a shared pod, by pod name."""
    write_pods(machine, PODS)
    run_agent(machine, FIELDS)
    return wait_for_pods(machine, PODS)


def allowed(machine: Machine, ids: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Return the CPUs and the NUMA nodes that the kernel grants each container, by pod name."""
    return {
        name: (
            value(machine, container, "cpuset.cpus.effective"),
            value(machine, container, "cpuset.mems.effective"),
        )
        for name, container in ids.items()
    }


def at_start(machine: Machine, name: str) -> tuple[str, ...]:
    lines = machine.check(f"cat /var/tmp/{name}").splitlines()
    return tuple(line.split()[1] for line in lines)


def test_the_first_process_is_pinned(machine: Machine, pinned: dict[str, str]) -> None:
    assert at_start(machine, "pinned") == EXPECTED["pinned"]
    machine.until(lambda: allowed(machine, pinned) == EXPECTED, 600, "the shared pool to shrink")


def test_pinning_survives_the_agent(machine: Machine, pinned: dict[str, str]) -> None:
    machine.until(lambda: allowed(machine, pinned) == EXPECTED, 600, "the shared pool to shrink")
    start_agent(machine)
    assert wait_for_pods(machine, PODS) == pinned
    assert allowed(machine, pinned) == EXPECTED
    machine.check("systemctl daemon-reload")
    assert allowed(machine, pinned) == EXPECTED


@pytest.mark.skipif("KUBE_BIN" not in os.environ, reason="needs KUBE_BIN: a folder with a kubelet v1.36")
def test_pinning_survives_a_kubelet_and_back(machine: Machine, pinned: dict[str, str]) -> None:
    machine.until(lambda: allowed(machine, pinned) == EXPECTED, 600, "the shared pool to shrink")
    stop_agent(machine)
    kubelet_in_machine.start(machine)
    assert wait_for_pods(machine, PODS) == pinned
    assert allowed(machine, pinned) == EXPECTED
    kubelet_in_machine.stop(machine)
    start_agent(machine)
    assert wait_for_pods(machine, PODS) == pinned
    assert allowed(machine, pinned) == EXPECTED
