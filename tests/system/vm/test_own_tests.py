"""The checkout's own tests on cgroup v2 under systemd."""

from __future__ import annotations

import os

import pytest

from tests.system.vm.machine import Machine, Size
from tests.system.vm.node_in_machine import PYTHON, ROOT

SIZE = Size(cpus=2, memory=4096)
HOURS = 6 * 3600


@pytest.mark.parametrize("suite", ["cgroups", "eviction", "node"])
def test_own_tests(machine: Machine, suite: str) -> None:
    command = f"{PYTHON} -m pytest -p no:cacheprovider -q -rfs --timeout 0 -m 'not uml' tests/{suite}"
    done = machine.run(f"cd {ROOT} && {command}", HOURS, show=_write)
    assert done.code == 0, done.output[-4000:]


def _write(text: str) -> None:
    os.write(2, text.encode())
