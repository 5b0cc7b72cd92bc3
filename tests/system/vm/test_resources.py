"""What cgroup v2 and a real kernel do for pods: memory QoS, swap, huge pages, pressure."""

from __future__ import annotations

import json

import pytest

from tests.system.vm.machine import Machine
from tests.system.vm.node_in_machine import PORT, faults, run_agent, start_agent
from tests.system.vm.pods_in_machine import (
    BEST_EFFORT,
    BURSTABLE,
    GUARANTEED,
    equal,
    pod,
    value,
    wait_for_pods,
    write_pods,
)

MIB = 1 << 20
PAGE = 4096


def test_memory_qos(node: Machine) -> None:
    limited = pod("limited", {"requests": {"memory": "32Mi"}, "limits": {"memory": "64Mi"}})
    pods = (GUARANTEED, limited)
    write_pods(node, ())
    wait_for_pods(node, ())
    fields = {"featureGates": {"MemoryQoS": True}, "memoryReservationPolicy": "TieredReservation"}
    run_agent(node, {**fields, "memoryThrottlingFactor": 0.5})
    write_pods(node, pods)
    ids = wait_for_pods(node, pods)
    assert value(node, ids["limited"], "memory.high") == str(48 * MIB)
    assert value(node, ids["limited"], "memory.low") == str(32 * MIB)
    assert value(node, ids["guaranteed"], "memory.high") == "max"
    assert value(node, ids["guaranteed"], "memory.min") == str(32 * MIB)
    assert faults(node) == "no faults"


def test_swap(node: Machine) -> None:
    """A Burstable pod gets swap in proportion to its request, the others none."""
    pods = (GUARANTEED, BURSTABLE, BEST_EFFORT)
    node.check(
        "truncate -s 0 /swap && fallocate -l 512M /swap && chmod 600 /swap && mkswap /swap && swapon /swap"
    )
    try:
        write_pods(node, ())
        wait_for_pods(node, ())
        run_agent(node, {"failSwapOn": False, "memorySwap": {"swapBehavior": "LimitedSwap"}})
        write_pods(node, pods)
        ids = wait_for_pods(node, pods)
        lines = (line.split() for line in node.check("cat /proc/meminfo").splitlines())
        total = {words[0]: int(words[1]) << 10 for words in lines}
        share = 32 * MIB / total["MemTotal:"] * total["SwapTotal:"]
        assert abs(int(value(node, ids["burstable"], "memory.swap.max")) - share) <= PAGE
        assert value(node, ids["guaranteed"], "memory.swap.max") == "0"
        assert value(node, ids["besteffort"], "memory.swap.max") == "0"
        assert faults(node) == "no faults"
    finally:
        node.check("swapoff /swap; rm /swap")


def test_huge_pages(node: Machine) -> None:
    node.check("echo 64 > /proc/sys/vm/nr_hugepages; test $(cat /proc/sys/vm/nr_hugepages) = 64")
    try:
        huge = pod("huge", equal(cpu="100m", memory="32Mi", **{"hugepages-2Mi": "8Mi"}))
        write_pods(node, (huge,))
        start_agent(node)
        ids = wait_for_pods(node, (huge,))
        assert value(node, ids["huge"], "hugetlb.2MB.max") == str(8 * MIB)
        assert value(node, ids["huge"], "../hugetlb.2MB.max") == str(8 * MIB)
        assert faults(node) == "no faults"
    finally:
        node.check("echo 0 > /proc/sys/vm/nr_hugepages")


@pytest.mark.parametrize("resource", ["cpu", "memory", "io"])
def test_pressure_is_shown(node: Machine, resource: str) -> None:
    summary = json.loads(node.check(f"curl -sf http://127.0.0.1:{PORT}/stats/summary"))
    for shown in (summary["node"], *summary["pods"]):
        assert shown[resource]["psi"]["some"].keys() == {"total", "avg10", "avg60", "avg300"}
