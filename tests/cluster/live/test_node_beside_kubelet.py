"""The Node that this agent registers is the one that a real kubelet registers from the same command line."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from engine.cluster.client import ApiError
from engine.host.mounts import unmount_below
from engine.runtime.hollow import HollowRuntime
from tests.cluster.control_plane import Object, Plane
from tests.cluster.scenes import NODE
from tests.cluster_rig import condition
from tests.guarded_host import COMMAND
from tests.ports import free_port
from tests.waiting import PATIENCE

KUBELET = Path(os.environ.get("KUBE_BIN", "/nonexistent")) / "kubelet"
OWN_METADATA = ("creationTimestamp", "managedFields", "resourceVersion", "uid")
OWN_TIMES = ("lastHeartbeatTime", "lastTransitionTime")

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(not KUBELET.is_file(), reason="needs KUBE_BIN: a folder with a kubelet v1.36"),
]


@pytest.mark.parametrize("plane", ["kube-apiserver"], indirect=True)
async def test_the_node_object_equals_the_kubelets(
    plane: Plane, tmp_path: Path, runtime: HollowRuntime
) -> None:
    runtime.images.add("docker.io/library/one:1")
    config = configuration(tmp_path, runtime)
    found = []
    for name, program in (
        ("kubelet", [str(KUBELET)]),
        ("ours", [*COMMAND, "kubelet"]),
    ):
        async with running([*program, *options(tmp_path / name, config, plane)], tmp_path / f"{name}.log"):
            found.append(await registered(plane))
        await plane.admin.delete(NODE, {})
        unmount_below(tmp_path / name)
    kubelets, ours = found
    assert (
        ours["status"]["nodeInfo"]
        .pop("kubeletVersion")
        .startswith(kubelets["status"]["nodeInfo"].pop("kubeletVersion"))
    )
    declared, known = (set(node["status"].pop("declaredFeatures")) for node in (ours, kubelets))
    assert declared == known
    assert without_times(ours) == without_times(kubelets)


def configuration(directory: Path, runtime: HollowRuntime) -> Path:
    fields = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{runtime.socket}",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "address": "127.0.0.1",
        "port": free_port(),
        "readOnlyPort": 0,
        "healthzPort": 0,
        "makeIPTablesUtilChains": False,
        "podLogsDir": str(directory / "logs"),
        "volumePluginDir": str(directory / "volume-plugins"),
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "systemReserved": {"cpu": "100m", "memory": "64Mi"},
        "maxPods": 77,
    }
    path = directory / "kubelet.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def options(directory: Path, config: Path, plane: Plane) -> list[str]:
    flags = {
        "config": config,
        "kubeconfig": plane.node,
        "root-dir": directory / "root",
        "cert-dir": directory / "pki",
        "hostname-override": "n1",
        "node-labels": "disk=ssd,zone=a",
        "register-with-taints": "only=these:NoSchedule",
    }
    return [f"--{name}={value}" for name, value in flags.items()]


@asynccontextmanager
async def running(command: Sequence[str], log: Path) -> AsyncIterator[None]:
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(*command, stdout=file, stderr=file)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def registered(plane: Plane) -> Object:
    """Wait until the node is ready and lists images, and return it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                node = await plane.admin.get(NODE, Object)
            except ApiError as error:
                if error.code != 404:
                    raise
                node = {"status": {}}
            if condition(node, "Ready").get("status") == "True" and node["status"].get("images"):
                return node
            await asyncio.sleep(0.2)


def without_times(node: Object) -> Object:
    """Return a copy of `node` without the metadata and the times that differ between any two nodes."""
    bare = copy.deepcopy(node)
    for field in OWN_METADATA:
        bare["metadata"].pop(field)
    for each in bare["status"]["conditions"]:
        for field in OWN_TIMES:
            each.pop(field)
    return bare
