"""A kubelet's node taken over and given back, both as services of systemd: no container restarts."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.system.vm import kubelet_in_machine
from tests.system.vm.machine import Machine
from tests.system.vm.node_in_machine import configure, faults, start_agent, stop_agent
from tests.system.vm.pods_in_machine import wait_for_pods, write_pods

pytestmark = pytest.mark.skipif(
    "KUBE_BIN" not in os.environ, reason="needs KUBE_BIN: a folder with a kubelet v1.36"
)


@pytest.fixture
def kubelet(machine: Machine) -> Iterator[Machine]:
    """Yield the machine with a kubelet that runs."""
    stop_agent(machine)
    configure(machine)
    write_pods(machine)
    kubelet_in_machine.start(machine)
    yield machine
    kubelet_in_machine.stop(machine)


def test_takeover_from_a_kubelet_and_back(kubelet: Machine) -> None:
    before = wait_for_pods(kubelet)
    kubelet_in_machine.stop(kubelet)
    start_agent(kubelet)
    assert wait_for_pods(kubelet) == before
    assert faults(kubelet) == "no faults"
    stop_agent(kubelet)
    kubelet_in_machine.start(kubelet)
    assert wait_for_pods(kubelet) == before
