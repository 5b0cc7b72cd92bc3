"""`systemCgroups` and `kubeletCgroups` on a real cgroup v2 kernel."""

from __future__ import annotations

import pytest

from engine.testing.uml import run_in_uml

BODY = r"""
import subprocess
from pathlib import Path
from engine.api.errors import Refused
from engine.hostsetup.own_process import Cgroups

groups = Cgroups([Path(CGROUPS)])
sleeper = subprocess.Popen(["sleep", "1000"])
seen = {"before": str(sleeper.pid) in Path(CGROUPS, "cgroup.procs").read_text().split()}
groups.put_system_processes("/system/all")
left = [int(pid) for pid in Path(CGROUPS, "cgroup.procs").read_text().split()]
seen["left"] = [pid for pid in left if pid > 1 and Path(f"/proc/{pid}/cmdline").read_bytes()]
seen["held"] = groups.holds("/system/all", sleeper.pid)
Path(CGROUPS, "inner/pods").mkdir(parents=True)
Path(CGROUPS, "cgroup.subtree_control").write_text("+memory")
Path(CGROUPS, "inner/cgroup.subtree_control").write_text("+memory")
try:
    groups.put("/inner", sleeper.pid)
except Refused as error:
    seen["refused"] = str(error)
seen["still"] = groups.holds("/system/all", sleeper.pid)
sleeper.kill()
report(seen)
"""


@pytest.mark.uml
@pytest.mark.slow
def test_processes_move_to_a_leaf_and_a_cgroup_with_controllers_refuses_them():
    seen = run_in_uml(BODY)
    assert (seen["before"], seen["left"], seen["held"], seen["still"]) == (True, [], True, True)
    assert "/inner: process" in seen["refused"]
    assert "name one without" in seen["refused"]
