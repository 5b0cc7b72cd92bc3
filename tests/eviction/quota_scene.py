"""Measure pods' emptyDirs by project quotas, inside a kernel that has them (see `test_project_quotas`)."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.events import EventRecorder
from engine.api.kubengine_config import EvictionSection
from engine.api.pod import Container, EmptyDirVolume, Pod, Volume, VolumeMount
from engine.api.quantity import Quantity
from engine.cri.paths import project_record
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.host.disks.project_quota import kept_project, volume_usage
from engine.host.trees import disk_usage
from engine.metrics import Registry
from engine.node.volumes.pod_volumes import PodVolumes
from tests.contexts import node_context
from tests.eviction.private_node import MIB, make_pod

_FINIT_MODULE = 313
_DISK = os.makedev(98, 0)
MODULES = {"ext4": ("quota_tree.ko", "quota_v2.ko"), "xfs": ()}
"""What the kernel of the tests has to load to count projects."""


def mounted(scratch: Path, kind: str) -> Path:
    """Mount the UML kernel's disk with project quotas, and return the directory."""
    libc = ctypes.CDLL(None, use_errno=True)
    modules = Path(f"/usr/lib/uml/modules/{os.uname().release}/kernel/fs/quota")
    for name in MODULES[kind]:
        with (modules / name).open("rb") as module:
            assert libc.syscall(_FINIT_MODULE, module.fileno(), b"", 0) == 0, ctypes.get_errno()
    os.mknod(scratch / "disk", 0o600 | stat.S_IFBLK, _DISK)
    (scratch / "fs").mkdir()
    subprocess.run(["mount", "-t", kind, "-o", "prjquota", scratch / "disk", scratch / "fs"], check=True)
    return scratch / "fs"


def pod(name: str, **volumes: str) -> Pod:
    """Build a pod with an emptyDir for each name; the value is its size limit, or empty for none."""
    return make_pod(
        name,
        containers=[Container(name="main", volume_mounts=[VolumeMount(v, f"/{v}") for v in volumes])],
        volumes=[
            Volume(v, empty_dir=EmptyDirVolume(size_limit=Quantity.parse(size) if size else None))
            for v, size in volumes.items()
        ],
    )


async def measure_and_evict(scratch: Path, kind: str) -> dict[str, Any]:
    """Return sizes, projects and evictions when a pod exceeds its emptyDir's limit with a deleted file.

    Its neighbour stays below the limit.
    """
    root = mounted(scratch, kind)
    registry, decisions = Registry(), Decisions(time.time)
    volumes = PodVolumes(root, project_quotas="all", registry=registry)
    hog, calm = pod("hog", work="4Mi", other=""), pod("calm", work="4Mi")
    paths = {one.uid: volumes.set_up(one, {}, allocatable={}) for one in (hog, calm)}
    work = paths[hog.uid]["work"]
    (paths[calm.uid]["work"] / "file").write_bytes(bytes(2 * MIB))
    (work / "below").mkdir()
    with (work / "below" / "deleted").open("wb") as file:
        file.write(bytes(6 * MIB))
        file.flush()
        os.fsync(file.fileno())
        (work / "below" / "deleted").unlink()
        ended: list[Pod] = []

        async def kill(one: Pod, _end: object) -> None:
            ended.append(one)

        manager = EvictionManager(
            node_context(
                KubeletConfiguration(eviction_hard={}, pod_logs_dir=str(root / "logs")),
                eviction=EvictionSection(),
                recorder=EventRecorder(time.time),
                decisions=decisions,
                root=root,
            ),
            EvictablePods(
                active=lambda: [hog, calm], kill=kill, cgroup=lambda _uid: None, cleaned_up=lambda _uid: True
            ),
        )
        await manager.synchronize()
        await manager.stop()
        seen = {
            "walked": disk_usage(work)[0],
            "counted": volume_usage(work, project_record(work)),
            "ended": [one.metadata.name for one in ended],
            "decided": [dict(one.inputs) for one in decisions.after(0)],
            "projects": {
                f"{uid}/{name}": kept_project(project_record(path))
                for uid, of_pod in paths.items()
                for name, path in of_pod.items()
            },
        }
        volumes.tear_down(hog.uid)
        again = PodVolumes(root, project_quotas="all", registry=registry)
        late = again.set_up(pod("late", work=""), {}, allocatable={})["work"]
        seen["while open"] = kept_project(project_record(late))
        seen["late"] = volume_usage(late, project_record(late))
    seen["metric"] = {
        "/".join(labels): value
        for labels, value in registry.metrics["kubengine_project_quota_volumes_total"].values.items()
    }
    return seen
