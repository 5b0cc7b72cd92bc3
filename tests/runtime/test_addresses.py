"""The bridge of pods, in network namespaces of the test's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ipaddress, json, socket, subprocess, sys
from pathlib import Path
from engine.runtime import addresses, links
state = Path(sys.argv[1])
first = addresses.PodNetwork(state)
if sys.argv[2] == "half":
    addresses._request(links.bridge(first.bridge), "bridge")
given = [first.take(), first.take(), addresses.PodNetwork(state).take()]
command = ["ip", "-j", "address", "show", first.bridge]
shown = json.loads(subprocess.run(command, capture_output=True).stdout)[0]
local = [entry["local"] for entry in shown["addr_info"] if entry["family"] == "inet"]
expected = [str(first.subnet[number]) for number in (2, 3, 2)]
print(given == expected, local == [first.gateway], "UP" in shown["flags"])
"""


@pytest.mark.root
@pytest.mark.parametrize("before", ["nothing", "half"])
def test_the_bridge_is_completed_where_sys_shows_another_network_namespace(
    tmp_path: Path, before: str
) -> None:
    command = ["unshare", "--net", sys.executable, "-c", PROGRAM, str(tmp_path), before]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True True True\n", done.stderr
