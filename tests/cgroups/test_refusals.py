"""Each refusal of the kernel: one clear error with the path, and a later try repairs it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import cgroup_scenes
import pytest
import refusal_scenes
from cgroup_scenes import guaranteed, managed
from test_kernels import in_uml, on_this_machine

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.cgroups.manager import CgroupManager
from engine.host.cgroupfs.mounts import CgroupHierarchy, Mounts, find_mounts

SHARED = {
    "no permission": (errno.EACCES, "/podg", "no permission"),
    "busy on removal": (errno.EBUSY, "", "processes or child groups are left in it"),
    "bad value": (errno.EINVAL, "/podg/memory.", "the kernel rejects this value"),
    "no such file": (errno.ENOENT, "/podg/memory.no_such_file", "its controller is missing or not enabled"),
}


@pytest.mark.parametrize(
    "play",
    [
        pytest.param(on_this_machine, marks=pytest.mark.root, id="this-machine"),
        pytest.param(in_uml, marks=[pytest.mark.uml, pytest.mark.slow], id="uml-v2"),
    ],
)
def test_refusals_that_both_versions_share(play, private_root):
    seen = play("refused_then_repaired", private_root, refusal_scenes)
    for case, (code, path, words) in SHARED.items():
        assert seen[case].get("errno") == code, (case, seen[case])
        assert path in seen[case]["subject"], case
        assert words in seen[case]["message"], case
        assert private_root in seen[case]["subject"], case
    assert seen["after"] == {}
    assert seen["value"] == str(64 << 20)


@pytest.mark.root
@pytest.mark.skipif(find_mounts().version != 1, reason="needs cgroup v1 hierarchies")
def test_refusals_of_v1(private_root):
    seen = on_this_machine("v1_refusals", private_root, refusal_scenes)
    assert seen["below usage"]["errno"] == errno.EBUSY
    assert seen["below usage"]["subject"].endswith("/podg/memory.limit_in_bytes")
    assert "memory in use is above the value" in seen["below usage"]["message"]
    assert seen["above parent"]["errno"] == errno.EINVAL
    assert "a child's limit may not exceed its parent's" in seen["above parent"]["message"]
    assert seen["after"] == {}


@pytest.mark.uml
@pytest.mark.slow
def test_refusals_of_v2(private_root):
    seen = in_uml("v2_refusals", private_root, refusal_scenes)
    expected = {
        "processes inside": (errno.EBUSY, "cgroup.subtree_control", "holds processes of its own"),
        "threaded": (None, "", "threaded"),
        "too many": (errno.EAGAIN, "/kubepods/podg", "cgroup.max.descendants is reached"),
        "read-only write": (errno.EROFS, "", "mounted read-only"),
        "read-only start": (errno.EROFS, "", "mounted read-only"),
    }
    for case, (code, path, words) in expected.items():
        assert seen[case], case
        assert code is None or seen[case]["errno"] == code, (case, seen[case])
        assert path in seen[case]["subject"], (case, seen[case])
        assert words in seen[case]["message"], (case, seen[case])
    for case in ("processes inside", "threaded", "too many", "read-only"):
        assert seen[f"{case}, after"] == {}, case
    assert seen["controller removed"] == {}, "it is enabled again at once"
    assert seen["memory"] == str(64 << 20)


@pytest.mark.root
def test_a_full_hierarchy_is_a_clear_error(private_root, monkeypatch):
    """ENOSPC on mkdir: 65,535 groups would be needed for the real one."""
    with managed(private_root) as manager:
        real = os.mkdir

        def full(path, mode=0o777):
            if str(path).endswith("/podg"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            real(path, mode)

        monkeypatch.setattr(os, "mkdir", full)
        with pytest.raises(
            Refused, match=r"/kubepods/podg: cannot create the group: no further groups are allowed.*ENOSPC"
        ):
            manager.create_pod(guaranteed("g"))
        monkeypatch.setattr(os, "mkdir", real)
        manager.create_pod(guaranteed("g"))
        assert manager.existing_pods().keys() == {"g"}


def manager_on(mounts: Mounts, **config) -> CgroupManager:
    return CgroupManager(
        config=KubeletConfiguration(**config), capacity={"cpu": 2000, "memory": 1 << 30}, mounts=mounts
    )


def test_a_missing_required_controller_is_named(tmp_path):
    mounts = Mounts(2, (CgroupHierarchy(str(tmp_path), frozenset(["cpu", "pids"])),))
    with pytest.raises(Refused, match=f"{tmp_path}: the memory controller is missing") as refusal:
        manager_on(mounts).start()
    assert refusal.value.errno == errno.ENOENT


def test_a_read_only_mount_is_refused_before_anything_is_made(tmp_path):
    mounts = Mounts(2, (CgroupHierarchy(str(tmp_path), frozenset(["cpu", "memory"]), read_only=True),))
    with pytest.raises(Refused, match=f"{tmp_path}: the cgroup file system is mounted read-only"):
        manager_on(mounts).start()
    assert not list(tmp_path.iterdir())


def test_reservations_larger_than_the_node_are_refused(tmp_path):
    mounts = Mounts(2, (CgroupHierarchy(str(tmp_path), frozenset(["cpu", "memory"])),))
    with pytest.raises(Refused, match="more cpu is reserved than the node has"):
        manager_on(mounts, kube_reserved={"cpu": "3"}).start()


def test_no_hierarchy_at_all(tmp_path):
    with pytest.raises(Unavailable, match="no cgroup hierarchy is mounted here"):
        find_mounts(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"cgroup_driver": "cgroupd"}, "cgroupDriver"),
        ({"qos_reserved": {"memory": "120%"}}, "qosReserved.memory"),
        ({"qos_reserved": {"cpu": "10%"}}, "qosReserved.cpu"),
        ({"kube_reserved": {"cpu": "-1"}}, "kubeReserved.cpu"),
        ({"kube_reserved": {"cpu": "one"}}, "kubeReserved.cpu"),
        ({"enforce_node_allocatable": ["podz"]}, "enforceNodeAllocatable"),
        ({"enforce_node_allocatable": ["none", "pods"]}, "enforceNodeAllocatable"),
        ({"enforce_node_allocatable": ["system-reserved"]}, "systemReservedCgroup"),
        ({"eviction_hard": {"memory.available": "x%"}}, "evictionHard.memory.available"),
    ],
)
def test_bad_configuration_names_its_field(tmp_path, config, field):
    mounts = Mounts(2, (CgroupHierarchy(str(tmp_path), frozenset(["cpu", "memory"])),))
    with pytest.raises(InvalidInput, match=f"^{field}"):
        manager_on(mounts, **config)


def test_killing_whole_groups_needs_v2(tmp_path):
    mounts = Mounts(1, (CgroupHierarchy(str(tmp_path), frozenset(["cpu", "memory"])),))
    with pytest.raises(InvalidInput, match="singleProcessOOMKill: false needs cgroup v2"):
        manager_on(mounts, single_process_oom_kill=False)


@pytest.mark.root
def test_an_enforced_group_must_exist(private_root):
    config = {
        "system_reserved": {"cpu": "100m", "memory": "64Mi"},
        "system_reserved_cgroup": f"{private_root}/system",
        "enforce_node_allocatable": ["pods", "system-reserved"],
    }
    with pytest.raises(Refused, match=f"{private_root}/system: system-reserved is enforced, but its cgroup"):
        cgroup_scenes.start_and_stop(private_root, **config)
    cgroup_scenes.remove(private_root)


def test_mounts_of_a_hybrid_machine(tmp_path):
    root = tmp_path / "cgroup"
    (root / "unified").mkdir(parents=True)
    (root / "unified/cgroup.controllers").write_text("")
    lines = [
        f"30 25 0:26 / {root} ro,nosuid - tmpfs tmpfs ro,mode=755",
        f"31 30 0:27 / {root}/unified rw - cgroup2 cgroup2 rw",
        f"32 30 0:28 / {root}/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct",
        f"33 30 0:29 / {root}/systemd rw - cgroup cgroup rw,xattr,name=systemd",
        f"34 30 0:30 / {root}/memory ro,nosuid - cgroup cgroup rw,memory",
        "35 25 0:31 / /other rw - cgroup cgroup rw,memory",
    ]
    file = tmp_path / "mountinfo"
    file.write_text("\n".join(lines))
    mounts = find_mounts(str(root), str(file))
    assert mounts.version == 1
    assert mounts.bare == f"{root}/unified"
    assert [h.path for h in mounts.hierarchies] == [
        f"{root}/cpu,cpuacct",
        f"{root}/systemd",
        f"{root}/memory",
    ]
    memory, cpuacct = mounts.holding("memory"), mounts.holding("cpuacct")
    assert memory is not None
    assert memory.read_only
    assert cpuacct is not None
    assert cpuacct.controllers == {"cpu", "cpuacct"}
    assert Path(cpuacct.path).name == "cpu,cpuacct"


def test_overmounted_hierarchies_are_ignored(tmp_path):
    lines = [
        "30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw",
        "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        "32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
        "40 30 0:29 / /sys/fs/cgroup rw - tmpfs tmpfs rw",
        "41 40 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
    ]
    file = tmp_path / "mountinfo"
    file.write_text("\n".join(lines))
    mounts = find_mounts(mountinfo=str(file))
    assert [hierarchy.path for hierarchy in mounts.hierarchies] == ["/sys/fs/cgroup/cpu"]
    assert mounts.bare is None


@pytest.mark.root
def test_cgroups_of_others_beside_the_pods_survive_their_removal(private_root):
    with managed(private_root) as manager:
        manager.create_pod(guaranteed("g", "500m"))
        top = manager.tree.group(manager.settings.root[:1]).path
        others = [Path(f"{hierarchy.path}{top}/other") for hierarchy in manager.mounts.hierarchies]
        for other in others:
            other.mkdir()
        manager.remove_all(kill=True, wait=5.0)
        assert not manager.tree.exists_anywhere(manager.settings.root)
        assert all(other.is_dir() for other in others), "an empty cgroup is still somebody's"
        for other in others:
            other.rmdir()
        manager.remove_all(kill=True, wait=5.0)
        assert not manager.tree.exists_anywhere(manager.settings.root[:1])
