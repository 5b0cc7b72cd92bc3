"""emptyDirs counted by the kernel: on ext4 and XFS with project quotas in a kernel that has them, and what
becomes of them where there are none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api.errors import InvalidInput
from engine.api.pod import EmptyDirVolume, Volume
from engine.cri.paths import project_record
from engine.host.disks.project_quota import volume_usage
from engine.host.trees import disk_usage
from engine.metrics import Registry
from engine.node.volumes.pod_volumes import PodVolumes
from engine.node.volumes.project_ids import ALL, FIRST, NONE, USER_NAMESPACES, ProjectIds, next_free
from engine.testing.uml import run_in_uml
from tests.eviction.private_node import MIB, make_pod

TESTS = Path(__file__).parents[1]
MAKE: dict[str, tuple[Any, ...]] = {
    "ext4": (64 * MIB, "mkfs.ext4", "-O", "quota,project", "-E", "quotatype=prjquota"),
    "xfs": (320 * MIB, "mkfs.xfs"),
}
METRIC = "kubengine_project_quota_volumes_total"


def test_numbers_follow_those_that_are_taken():
    assert next_free(set(), FIRST) == FIRST
    assert next_free({1, 42, FIRST + 3, 2**32}, FIRST) == FIRST + 4


def test_unknown_values_are_refused(tmp_path: Path):
    with pytest.raises(InvalidInput, match=r"^eviction\.projectQuotas: expected none, .* got 'on'"):
        ProjectIds(tmp_path, "on", Registry())


@pytest.mark.parametrize(
    ("whose", "host_users", "tried"),
    [
        (NONE, False, False),
        (USER_NAMESPACES, None, False),
        (USER_NAMESPACES, True, False),
        (USER_NAMESPACES, False, True),
        (ALL, None, True),
    ],
)
def test_which_volumes_the_kernel_counts(
    tmp_path: Path, whose: str, host_users: bool | None, tried: bool, caplog: pytest.LogCaptureFixture
):
    """No file system of this machine has project quotas: one warning says so, and files are counted one by
    one.
    """
    registry = Registry()
    volumes = PodVolumes(tmp_path, project_quotas=whose, registry=registry)
    for name in ("first", "second"):
        pod = make_pod(name, host_users=host_users, volumes=[Volume("v", empty_dir=EmptyDirVolume())])
        main = msgspec.structs.replace(pod.spec.containers[0], volume_mounts=None)
        pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=[main]))
        directory = volumes.pod_directory(pod.uid) / "volumes" / "kubernetes.io~empty-dir" / "v"
        record = project_record(directory)
        record.parent.mkdir(parents=True)
        directory.mkdir(parents=True)
        volumes._projects.assign(pod, directory, record)
        (directory / "file").write_bytes(bytes(MIB))
        assert not record.exists()
        assert volume_usage(directory, record) == (*disk_usage(directory), False)
        assert volume_usage(directory, record)[0] >= MIB
    assert registry.metrics[METRIC].values == ({("impossible",): 2} if tried else {})
    assert caplog.text.count("no project quotas") == tried


@pytest.mark.parametrize("text", ["", "many", "-1", f"{FIRST}"])
def test_an_empty_record_causes_a_full_walk(tmp_path: Path, text: str):
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "file").write_bytes(bytes(MIB))
    (tmp_path / "record").write_text(text)
    assert volume_usage(tmp_path / "volume", tmp_path / "record") == (*disk_usage(tmp_path / "volume"), False)


@pytest.mark.uml
@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKE)
def test_a_deleted_file_that_is_open_is_counted_and_evicted_for(tmp_path: Path, kind: str):
    room, program, *options = MAKE[kind]
    if shutil.which(program) is None:
        pytest.skip(f"needs {program} (Debian: xfsprogs)")
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.truncate(room)
    subprocess.run([program, "-q", *options, disk], check=True)
    seen: dict[str, Any] = run_in_uml(
        f"""
        import asyncio, pathlib
        sys.path[:0] = [{str(TESTS.parent)!r}]
        from tests.eviction.quota_scene import measure_and_evict
        report(asyncio.run(measure_and_evict(pathlib.Path(SCRATCH), {kind!r})))
        """,
        disk=disk,
    )
    assert seen["walked"] < MIB
    size, inodes, by_quota = seen["counted"]
    assert size >= 6 * MIB
    assert (inodes, by_quota) == (3, True)
    assert seen["ended"] == ["hog"]
    (decided,) = seen["decided"]
    assert decided["signal"] == "emptydirfs.limit"
    assert decided["used"] >= 6 * MIB
    assert decided["byQuota"] == ["work", "other"]
    projects = seen["projects"]
    assert sorted(projects.values()) == [FIRST, FIRST + 1, FIRST + 2]
    assert seen["while open"] == FIRST + 3, "a project whose files are still there was given anew"
    assert seen["late"][1:] == [1, True]
    assert seen["metric"] == {"given": 4}
