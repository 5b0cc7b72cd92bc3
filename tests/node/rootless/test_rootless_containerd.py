"""The agent on a rootless containerd: both are root of a user namespace only, and have no cgroups."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import engine
from tests.node.rootless.test_rootless import readable_python

USER = 1000
OTHERS = 100_000
"""First of the host's users that stand for other users than root in the namespace."""

pytestmark = [
    pytest.mark.root,
    pytest.mark.containerd,
    pytest.mark.slow,
    pytest.mark.skipif(not readable_python(), reason="needs this version of Python in /usr/bin"),
]


def run_as_root_of_a_namespace(program: Path, directory: Path) -> dict[str, Any]:
    """Run the program as uid 1000 in a new user namespace, with the users that `newuidmap` would map."""
    packages = f"{Path(engine.__file__).parent.parent}:{Path(pytest.__file__).parent.parent}"
    process = subprocess.Popen(
        [
            *("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"),
            *("unshare", "--user", "--mount", "--net", "--pid", "--fork", "--kill-child"),
            # A program that starts before the users are mapped has no capabilities.
            *("sh", "-c", 'read _; exec "$@"', "sh", readable_python(), str(program), str(directory)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={"PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]},
    )
    try:
        _wait_for_its_namespace(process)
        for kind in ("uid", "gid"):
            Path(f"/proc/{process.pid}/{kind}_map").write_text(f"0 {USER} 1\n1 {OTHERS} 65535\n")
        out, err = process.communicate("\n", timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err
    seen: dict[str, Any] = json.loads(out)
    return seen


def _wait_for_its_namespace(process: subprocess.Popen[str]) -> None:
    own, deadline = Path("/proc/self/ns/user").readlink(), time.monotonic() + 30
    while Path(f"/proc/{process.pid}/ns/user").readlink() == own:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "no user namespace"
        time.sleep(0.01)


def test_a_node_runs_pods_on_a_rootless_containerd() -> None:
    # The program mounts a file system of its own there; CNI's plugins create it for a machine's first pod.
    Path("/var/lib/cni").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kr-") as name:
        directory = Path(name)
        os.chown(directory, USER, USER)
        seen = run_as_root_of_a_namespace(Path(__file__).with_name("containerd_program.py"), directory)
    assert seen["uid_map"] == [["0", str(USER), "1"], ["1", str(OTHERS), "65535"]]
    assert seen["address"].startswith("10."), "a network of its own"
    assert seen["log"] == ["0"]
    assert seen["left"] == []
