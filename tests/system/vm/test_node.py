"""The agent under systemd as process 1 on cgroup v2: starts, restarts, reboots, shutdowns, lost slices."""

from __future__ import annotations

import json

from tests.system.vm.machine import Machine
from tests.system.vm.node_in_machine import LONG, STATE, UNIT, faults, run_agent, start_agent
from tests.system.vm.pods_in_machine import (
    containers,
    group,
    pod,
    value,
    wait_for_pods,
    write_pods,
)


def test_first_start(node: Machine) -> None:
    assert node.check(f"systemctl show {UNIT} -p NRestarts --value").strip() == "0"
    assert faults(node) == "no faults"
    ids = containers(node)
    above = {name: group(node, container).split("/")[4:-1] for name, container in ids.items()}
    assert [part.partition("-pod")[0] for part in above["guaranteed"]] == ["kubepods.slice", "kubepods"]
    assert above["burstable"][1] == "kubepods-burstable.slice"
    assert above["besteffort"][1] == "kubepods-besteffort.slice"
    assert value(node, ids["guaranteed"], "memory.max") == str(32 << 20)
    assert value(node, ids["guaranteed"], "cpu.max") == "10000 100000"


def test_daemon_reload_keeps_values_and_containers(node: Machine) -> None:
    before = containers(node)
    node.check("systemctl daemon-reload")
    assert faults(node) == "no faults"
    assert wait_for_pods(node) == before


def test_stopped_slices_come_back_with_their_pods(node: Machine) -> None:
    before = containers(node)
    stop(node, "kubepods-burstable.slice")
    after = wait_for_pods(node, other_than={"burstable": before["burstable"]})
    assert {name for name in before if after[name] != before[name]} == {"burstable"}
    assert faults(node) == "no faults"
    stop(node, "kubepods.slice")
    wait_for_pods(node, other_than=after)
    assert faults(node) == "no faults"


def stop(machine: Machine, slice_: str) -> None:
    """Stop a slice and what is in it. The first pod that starts again needs the slice: if the slice has not
    stopped by then, systemd cancels the rest of the stop, and systemctl fails."""
    done = machine.run(f"systemctl stop {slice_}", LONG)
    assert done.code == 0 or "canceled" in done.output, done.output


def test_restart_of_the_agent_keeps_containers(node: Machine) -> None:
    before = containers(node)
    start_agent(node)
    assert wait_for_pods(node) == before


def test_reboot_starts_every_pod_again(node: Machine) -> None:
    before = containers(node)
    node.reboot()
    wait_for_pods(node, other_than=before)
    assert faults(node) == "no faults"


def test_shutdown_ends_pods_by_priority(machine: Machine) -> None:
    """systemd would end both at once; the critical pod, which is quicker, is the second to end."""
    write = "echo {0} >> /host/ends; sync; exit 0"
    wait = "trap '{0}' TERM; while true; do sleep 1; done"
    usual = pod("usual", script=wait.format("sleep 3; " + write.format("usual")))
    critical = pod("critical", script=wait.format(write.format("critical")), priority=2_000_001_000)
    for manifest in (usual, critical):
        manifest["spec"]["terminationGracePeriodSeconds"] = 100
    machine.run("rm -f /var/tmp/ends")
    run_agent(machine, {"shutdownGracePeriod": "200s", "shutdownGracePeriodCriticalPods": "100s"})
    write_pods(machine, (usual, critical))
    before = wait_for_pods(machine, (usual, critical))
    assert "delay" in machine.check("systemd-inhibit --list --no-legend")
    machine.power_off()
    machine.start()
    assert machine.check("cat /var/tmp/ends").split() == ["usual", "critical"]
    times = json.loads(machine.check(f"cat {STATE}/graceful_node_shutdown_state"))
    assert not times["endTime"].startswith("0001")
    wait_for_pods(machine, (usual, critical), other_than=before)
