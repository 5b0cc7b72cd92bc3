"""Test crun in place of runc, and containerd 2, which reports its cgroup driver."""

from __future__ import annotations

import os

import pytest

from tests.system.vm.machine import Machine
from tests.system.vm.node_in_machine import (
    LONG,
    UNIT,
    containerd_config,
    faults,
    import_images,
    put,
    run_agent,
    start_agent,
    stop_agent,
    use_containerd_2,
)
from tests.system.vm.pods_in_machine import GUARANTEED, group, value, wait_for_pods, write_pods

STATES = "/run/containerd/runc/k8s.io"
PROBED = {
    **GUARANTEED,
    "metadata": {"name": "probed"},
    "spec": GUARANTEED["spec"]
    | {
        "containers": [
            GUARANTEED["spec"]["containers"][0]
            | {"readinessProbe": {"exec": {"command": ["true"]}, "timeoutSeconds": 60, "periodSeconds": 1}}
        ]
    },
}
PODS = (GUARANTEED, PROBED)


def test_crun(machine: Machine) -> None:
    put(machine, "/etc/containerd/config.toml", containerd_config("/usr/bin/crun"))
    machine.check("systemctl restart containerd", LONG)
    write_pods(machine, PODS)
    run_agent(machine)
    ids = wait_for_pods(machine, PODS)
    machine.check(f"test -e {STATES}/{ids['probed']}/status")  # crun's; runc's is state.json
    check_resources(machine, ids, "container/")
    start_agent(machine)
    assert wait_for_pods(machine, PODS) == ids
    write_pods(machine, ())
    wait_for_pods(machine, ())
    stop_agent(machine)


@pytest.mark.skipif(
    "CONTAINERD2_BIN" not in os.environ,
    reason="needs CONTAINERD2_BIN: a folder with containerd 2, its shim, ctr and runc",
)
def test_containerd_2(machine: Machine) -> None:
    folder = use_containerd_2(machine)
    import_images(machine, f"{folder}/ctr")
    write_pods(machine, PODS)
    run_agent(machine, {"cgroupDriver": None})  # its default, cgroupfs, is not what this runtime uses
    ids = wait_for_pods(machine, PODS)
    journal = machine.check(f"journalctl -b -u {UNIT} --no-pager")
    assert "does not implement RuntimeConfig" not in journal.rpartition("Starting ")[2]
    check_resources(machine, ids)
    start_agent(machine)
    assert wait_for_pods(machine, PODS) == ids
    stop_agent(machine)


def check_resources(machine: Machine, ids: dict[str, str], inner: str = "") -> None:
    """Check that the kernel has the pod's limits; crun puts a container into `inner`, below its scope."""
    assert group(machine, ids["guaranteed"]).endswith(f"/cri-containerd-{ids['guaranteed']}.scope")
    assert value(machine, ids["guaranteed"], f"{inner}memory.max") == str(32 << 20)
    assert value(machine, ids["guaranteed"], f"{inner}cpu.weight") == value(
        machine, ids["guaranteed"], "../cpu.weight"
    )
    assert faults(machine) == "no faults"
