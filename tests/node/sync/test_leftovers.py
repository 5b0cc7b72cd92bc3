"""What appears of pods after their end is removed, as in a kubelet's housekeeping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.cgroups.manager import CgroupManager
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container
from tests.waiting import eventually

pytestmark = pytest.mark.root


@pytest.fixture
async def running(
    rig: Rig, hollow: HollowRuntime, private_cgroup_root: str, monkeypatch: pytest.MonkeyPatch
) -> Rig:
    monkeypatch.setattr("engine.node.running_node.RECONCILE_SECONDS", 0.05)
    rig.config.cgroups_per_qos = True
    rig.config.cgroup_root = private_cgroup_root
    hollow.images.add("busybox:1")
    await rig.start()
    return rig


def cgroups(rig: Rig) -> CgroupManager:
    assert rig.node is not None
    found: Any = rig.node.components["cgroups"]
    assert isinstance(found, CgroupManager)
    return found


async def running_pod(rig: Rig, name: str, **metadata: Any) -> tuple[Path, str, list[Path]]:
    """Run a pod; return its manifest, its uid and the directories of its cgroup."""
    manifest = rig.write(name, {"containers": [container()], "restartPolicy": "Never"}, **metadata)
    await eventually(lambda: rig.phase(name) == "Running")
    pod, groups = rig.pod(name), cgroups(rig)
    assert pod is not None
    path = groups.pod_path(pod.uid)
    assert path is not None
    return manifest, pod.uid, [Path(f"{h.path}{path}") for h in groups.mounts.hierarchies]


async def test_what_a_late_start_leaves_of_a_removed_pod_goes(running: Rig) -> None:
    manifest, uid, directories = await running_pod(running, "p")
    manifest.unlink()
    await eventually(lambda: running.pod("p") is None)
    assert uid not in cgroups(running).existing_pods()
    for directory in (*directories, running.root / "pods" / uid / "etc-hosts"):
        directory.mkdir(parents=True)
    await eventually(lambda: uid not in cgroups(running).existing_pods())
    await eventually(lambda: not (running.root / "pods" / uid).exists())


async def test_the_cgroup_of_a_pod_that_has_ended_goes_and_the_pod_stays(
    running: Rig, hollow: HollowRuntime
) -> None:
    _, uid, directories = await running_pod(running, "p")
    (container_id,) = hollow.service.records.containers
    hollow.end_container(container_id, exit_code=0)
    await eventually(lambda: running.phase("p") == "Succeeded")
    await eventually(lambda: uid not in cgroups(running).existing_pods())
    for directory in directories:
        directory.mkdir()
    await eventually(lambda: uid not in cgroups(running).existing_pods())
    assert running.phase("p") == "Succeeded"
