"""The agent of an ordinary user, in a subtree of cgroup v2 that was delegated to it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.testing.uml import run_in_uml

SCENES = Path(__file__).parents[2] / "cgroups"
SCENE = """
    import subprocess
    from pathlib import Path
    sys.path.insert(0, {scenes!r})
    import delegated_scenes as scenes
    given = scenes.delegate(Path(CGROUPS))
    (given / "agent" / "cgroup.procs").write_text("0")
    own = Path(SCRATCH) / "own"
    own.mkdir()
    os.chown(own, scenes.USER, scenes.USER)
    environment = {{"PYTHONPATH": {path!r}, "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}}
    done = subprocess.run(
        [*{command!r}, str(own)],
        user=scenes.USER, group=scenes.USER, extra_groups=[], cwd=own, env=environment,
        capture_output=True, text=True,
    )
    report({{"out": done.stdout, "err": done.stderr}})
    """


def readable_python() -> str:
    """Return a Python of this version that every user may run, or nothing."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return shutil.which(name, path="/usr/bin:/usr/local/bin") or ""


def run_as_user(program: str, *prefix: str) -> dict[str, Any]:
    """Run a program of this directory as uid 1000 in its delegated subtree, and return what it printed."""
    top = Path(engine.__file__).parent.parent
    packages = Path(pytest.__file__).parent.parent
    command = [*prefix, readable_python(), str(Path(__file__).with_name(program))]
    answer = run_in_uml(SCENE.format(scenes=str(SCENES), command=command, path=f"{top}:{packages}"))
    assert answer["out"], answer["err"]
    seen: dict[str, Any] = json.loads(answer["out"])
    return seen


pytestmark = [
    pytest.mark.uml,
    pytest.mark.slow,
    pytest.mark.skipif(not readable_python(), reason="needs this version of Python in /usr/bin"),
]


def test_a_node_without_root_runs_pods_in_its_subtree_and_says_what_needs_root() -> None:
    seen = run_as_user("rootless_program.py")
    assert seen["uid"] == 1000
    assert seen["outside"] == {
        "refused": "/sys/fs/cgroup/kubepods: cannot create the group: no permission; run as root or delegate "
        "this subtree (EACCES)"
    }
    inside = seen["inside"]
    assert inside["phases"] == {"disk-n1": "Running", "memory-n1": "Pending"}
    assert inside["limits"] == [str(64 << 20)] * 2
    (refused,) = inside["mounts"]
    assert refused.endswith("/volumes/kubernetes.io~empty-dir/v: Operation not permitted")
    assert seen["left"] == []
    assert seen["embedded"].startswith("embedded runtime: containers need root")


def test_root_of_a_user_namespace_runs_real_containers() -> None:
    seen = run_as_user(
        "user_namespace_program.py", "unshare", "--user", "--map-root-user", "--mount", "--net", "--pid",
        "--mount-proc", "--fork",
    )  # fmt: skip
    assert seen["map"] == ["0", "1000", "1"]
    assert seen["ready"] == ["host-n1", "web-n1"]
    assert seen["written"] == ["0"], "the volume in memory and the user of the container"
    assert str(64 << 20) in seen["limits"]
    (refused,) = seen["refused"]
    assert refused.endswith("user 1234, group 0: not mapped in the runtime's user namespace")
    assert seen["left"] == []
