"""The agent under systemd as process 1 on cgroup v2: started by `make try-vm`.

Every test is a part: `make VM_PARTS="reboot or slices" try-vm` runs some of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.vm import image, node_in_machine
from tests.system.vm.machine import Machine, Size, interpreter
from tests.system.vm.node_in_machine import PYTHON, ROOT, UNIT, containers, faults, wait_for_pods

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif("KUBENGINE_VM" not in os.environ, reason="starts a virtual machine: `make try-vm`"),
    pytest.mark.skipif(bool(image.missing()), reason=f"a virtual machine needs {image.missing()}"),
]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    place = Path(os.environ["KUBENGINE_VM"])
    mounts = {"checkout": ROOT} | ({"python": python} if (python := interpreter()) else {})
    made = image.make(place, lambda text: os.write(2, f"{text}\n".encode()))
    machine = Machine(made, place / "machines/test", Size(cpus=2, memory=3072), mounts)
    machine.remove()
    try:
        machine.start()
        node_in_machine.install(machine)
        yield machine
    finally:
        machine.remove()


@pytest.fixture
def node(machine: Machine) -> Machine:
    """The machine with a running agent and a running pod of each class."""
    node_in_machine.write_pods(machine)
    machine.check(f"systemctl enable --now {UNIT}", 600)
    wait_for_pods(machine)
    return machine


def test_first_start(node: Machine) -> None:
    assert faults(node) == "no faults"
    assert node.check(f"systemctl show {UNIT} -p NRestarts --value").strip() == "0"


def test_daemon_reload_keeps_values_and_containers(node: Machine) -> None:
    before = containers(node)
    node.check("systemctl daemon-reload")
    assert faults(node) == "no faults"
    assert containers(node) == before


def test_stopped_slices_come_back_with_their_pods(node: Machine) -> None:
    for unit in ("kubepods-burstable.slice", "kubepods.slice"):
        before = containers(node)
        node.run(f"systemctl stop {unit}")
        gone = before if unit == "kubepods.slice" else {"burstable": before["burstable"]}
        wait_for_pods(node, other_than=gone)
        assert faults(node) == "no faults"


def test_restart_of_the_agent_keeps_containers(node: Machine) -> None:
    before = containers(node)
    node.check(f"systemctl restart {UNIT}", 600)
    wait_for_pods(node)
    assert containers(node) == before


def test_reboot_starts_every_pod_again(node: Machine) -> None:
    before = containers(node)
    node.reboot()
    wait_for_pods(node, other_than=before)
    assert faults(node) == "no faults"


@pytest.mark.parametrize("suite", ["cgroups", "eviction", "node"])
def test_own_tests(machine: Machine, suite: str) -> None:
    machine.run(f"systemctl disable --now {UNIT}; systemctl stop kubepods.slice")
    command = (
        f"cd {ROOT} && {PYTHON} -m pytest -p no:cacheprovider -q -rfs --timeout 0 -m 'not uml' tests/{suite}"
    )
    done = machine.run(command, 6 * 3600, show=_to_terminal)
    assert done.code == 0, done.output[-4000:]


def _to_terminal(text: str) -> None:
    os.write(2, text.encode())
