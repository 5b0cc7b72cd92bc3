"""What cgroup v2 and a real kernel do for pods: memory QoS, swap, huge pages, pressure."""

from __future__ import annotations

import json

import pytest

from tests.system.vm.machine import Machine
from tests.system.vm.node_in_machine import PORT, faults, run_agent, stop_agent
from tests.system.vm.pods_in_machine import (
    equal,
    pod,
    value,
    wait_for_pods,
    write_pods,
)

MIB = 1 << 20


def test_memory_qos(machine: Machine) -> None:
    reserved = pod("reserved", equal(cpu="100m", memory="32Mi"))
    limited = pod("limited", {"requests": {"memory": "32Mi"}, "limits": {"memory": "64Mi"}})
    fields = {"featureGates": {"MemoryQoS": True}, "memoryReservationPolicy": "TieredReservation"}
    run_agent(machine, {**fields, "memoryThrottlingFactor": 0.5})
    write_pods(machine, (reserved, limited))
    ids = wait_for_pods(machine, (reserved, limited))
    assert value(machine, ids["limited"], "memory.high") == str(48 * MIB)
    assert value(machine, ids["limited"], "memory.low") == str(32 * MIB)
    assert value(machine, ids["reserved"], "memory.high") == "max"
    assert value(machine, ids["reserved"], "memory.min") == str(32 * MIB)
    assert faults(machine) == "no faults"


def test_swap(machine: Machine) -> None:
    """The agent starts on a machine with swap. Static pods are critical, so that none of them may swap."""
    machine.check("fallocate -l 512M /swap && chmod 600 /swap && mkswap /swap && swapon /swap")
    try:
        run_agent(machine, {"failSwapOn": False, "memorySwap": {"swapBehavior": "LimitedSwap"}})
        pods = (
            pod("requests-some", {"requests": {"memory": "32Mi"}}),
            pod("reserved-all", equal(cpu="100m", memory="32Mi")),
            pod("requests-none"),
        )
        write_pods(machine, pods)
        ids = wait_for_pods(machine, pods)
        assert {value(machine, container, "memory.swap.max") for container in ids.values()} == {"0"}
        assert faults(machine) == "no faults"
    finally:
        stop_agent(machine)
        machine.check("swapoff /swap; rm /swap")


def test_huge_pages(machine: Machine) -> None:
    stop_agent(machine)  # it counts the machine's huge pages when it starts
    machine.check("echo 64 > /proc/sys/vm/nr_hugepages; test $(cat /proc/sys/vm/nr_hugepages) = 64")
    try:
        run_agent(machine)
        huge = pod("huge", equal(cpu="100m", memory="32Mi", **{"hugepages-2Mi": "8Mi"}))
        write_pods(machine, (huge,))
        ids = wait_for_pods(machine, (huge,))
        assert value(machine, ids["huge"], "hugetlb.2MB.max") == str(8 * MIB)
        assert value(machine, ids["huge"], "../hugetlb.2MB.max") == str(8 * MIB)
        assert faults(machine) == "no faults"
    finally:
        stop_agent(machine)
        machine.check("echo 0 > /proc/sys/vm/nr_hugepages")


@pytest.mark.parametrize("resource", ["cpu", "memory", "io"])
def test_pressure_is_shown(node: Machine, resource: str) -> None:
    summary = json.loads(node.check(f"curl -sf http://127.0.0.1:{PORT}/stats/summary"))
    for shown in (summary["node"], *summary["pods"]):
        assert shown[resource]["psi"]["some"].keys() == {"total", "avg10", "avg60", "avg300"}
