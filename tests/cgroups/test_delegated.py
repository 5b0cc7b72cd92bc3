"""Cgroups without root: a delegated subtree of a cgroup v2 kernel, where nothing above it may be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.host.cgroupfs.mounts import delegated_mounts
from engine.testing.uml import run_in_uml

HERE = Path(__file__).parent
SCENE = """
    sys.path.insert(0, {here!r})
    from pathlib import Path
    import delegated_scenes as scenes
    delegated = scenes.delegate(Path(CGROUPS))
    scenes.become_user(delegated)
    report({{"refusals": scenes.refusals(delegated), **scenes.manage_pods(delegated)}})
    """


@pytest.mark.uml
@pytest.mark.slow
def test_an_ordinary_user_manages_ranks_and_squeezes_pods_in_its_own_subtree() -> None:
    seen = run_in_uml(SCENE.format(here=str(HERE)))
    assert seen["uid"] == 1000
    assert seen["controllers"] == ["cpu", "memory", "pids"]
    assert (seen["limit"], seen["weight"]) == (str(64 << 20), "20")
    assert seen["first victim"] == "default/greedy"
    assert seen["ceiling"] is not None
    assert int(seen["quota"]) == 100 * seen["ceiling"]
    above, occupied = seen["refusals"]
    assert above == "/sys/fs/cgroup: is not delegated to this user, who may not write it"
    assert occupied.startswith("/sys/fs/cgroup/user/agent: holds 1 processes")


def test_a_directory_that_is_no_cgroup_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"cgroup.procs"):
        delegated_mounts(str(tmp_path))


def test_a_cgroup_with_processes_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("17\n18\n")
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    with pytest.raises(Refused, match=r"holds 2 processes \(the first is 17\); move them into a child"):
        delegated_mounts(str(tmp_path))
    (tmp_path / "cgroup.procs").write_text("")
    mounts = delegated_mounts(f"{tmp_path}/")
    assert (mounts.version, mounts.controllers) == (2, {"cpu", "memory"})
    assert str(mounts.directory("memory", "/kubepods")) == f"{tmp_path}/kubepods"
