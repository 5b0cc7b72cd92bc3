"""A kubelet in a machine, from the folder `KUBE_BIN`, as a service on the agent's configuration and state."""

from __future__ import annotations

import os
from pathlib import Path

from tests.system.vm.machine import Machine
from tests.system.vm.node_in_machine import CONFIG, LONG, STATE, bring, put, unit

UNIT = "kubelet.service"


def start(machine: Machine) -> None:
    """Start it, and wait until it says that it is ready."""
    machine.report("start the kubelet")
    place = bring(machine, Path(os.environ["KUBE_BIN"]), "kubelet")
    command = f"{place}/kubelet --config {CONFIG} --root-dir {STATE} --hostname-override vm"
    put(machine, f"/etc/systemd/system/{UNIT}", unit(command))
    restart = f"systemctl restart {UNIT} || {{ journalctl -n 40 -u {UNIT}; exit 1; }}"
    machine.check(f"systemctl daemon-reload; {restart}", LONG)


def stop(machine: Machine) -> None:
    """Stop it; its pods go on."""
    machine.check(f"systemctl stop {UNIT}", LONG)
