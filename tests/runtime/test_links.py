"""The netlink messages that set up the pods' network, and the process that sends them."""

from __future__ import annotations

import subprocess
import sys

from engine.runtime import links
from engine.runtime.shim.network import HOST, POD


def test_no_short_lived_process_loads_the_netlink_library() -> None:
    program = "import engine.runtime.shim.spawner, sys; print({'pyroute2', 'asyncio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_start_that_finds_the_runtime_loaded_loads_nothing() -> None:
    program = (
        "import sys; from engine.runtime import addresses; assert 'pyroute2' not in sys.modules\n"
        "from engine.runtime import links; before = set(sys.modules)\n"
        "list(links.pod_steps(veth='kb1', master=3, ip='10.64.0.2', prefix=20, gateway='10.64.0.1'))\n"
        "print(set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_only_the_hosts_end_of_the_pair_is_set_up_outside_the_pod() -> None:
    steps = list(links.pod_steps(veth="kb1", master=3, ip="10.64.0.2", prefix=20, gateway="10.64.0.1"))
    assert [where for where, _, _ in steps] == [POD, POD, HOST, POD, POD, POD]
    assert steps[2].message == links.up("kb1", 3)
    assert b"kb1\0" in steps[1].message
