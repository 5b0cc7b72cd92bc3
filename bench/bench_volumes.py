"""Costs of a pod's volumes: ten that the agent writes, on a node without and with thousands of other mounts.

`pytest bench/bench_volumes.py`. Each pod has four Secrets, four ConfigMaps, a downward API volume and a
token; six of the ten are file systems in memory. A node with 300 such pods has 2,500 mounts and more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api.pod import Pod
from engine.api.struct import decode_hook
from engine.host.atomic_writer import PublishedFile
from engine.host.mounts import mount_filesystem, unmount_entries
from engine.node.volumes.contents import Contents
from engine.node.volumes.pod_volumes import PodVolumes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts")

VOLUMES: dict[str, dict[str, Any]] = {
    **{f"secret-{number}": {"secret": {"secretName": "s"}} for number in range(4)},
    **{f"config-{number}": {"configMap": {"name": "c"}} for number in range(4)},
    "labels": {"downwardAPI": {"items": []}},
    "token": {"projected": {"sources": []}},
}
CONTENTS = {name: Contents({"data": PublishedFile(bytes(2000), 0o644)}) for name in VOLUMES}
PODS = 20


def pod(uid: str) -> Pod:
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in VOLUMES]
    spec = {
        "containers": [{"name": "c", "image": "i", "volumeMounts": mounts}],
        "volumes": [{"name": name, **source} for name, source in VOLUMES.items()],
    }
    document = {"metadata": {"name": "p", "namespace": "d", "uid": uid}, "spec": spec}
    return msgspec.convert(document, Pod, dec_hook=decode_hook)


@pytest.fixture(params=[0, 2500])
def mounts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """Mount as many other file systems, with paths as long as those of pods' volumes."""
    points = tmp_path / "volumes-of-other-pods-whose-paths-are-about-as-long-as-those-of-real-ones"
    points.mkdir()
    for number in range(request.param):
        point = points / str(number)
        point.mkdir()
        mount_filesystem("tmpfs", point, "size=4k")
    yield request.param
    unmount_entries(points)


@pytest.mark.benchmark(group="volumes")
def test_remove_ten_volumes(benchmark: Any, tmp_path: Path, mounts: int) -> None:
    volumes = PodVolumes(tmp_path / "root")
    uids = [f"uid-{number}" for number in range(PODS)]

    def set_up() -> None:
        for uid in uids:
            volumes.set_up(pod(uid), CONTENTS, allocatable={})

    def remove() -> None:
        for uid in uids:
            volumes.tear_down(uid)

    benchmark.extra_info["pods"] = PODS
    benchmark.pedantic(remove, setup=set_up, rounds=5)
    assert volumes.known_uids() == set()


@pytest.mark.benchmark(group="volumes")
def test_write_ten_volumes(benchmark: Any, tmp_path: Path) -> None:
    volumes = PodVolumes(tmp_path / "root")
    uids = iter(range(10_000))
    benchmark.pedantic(lambda: volumes.set_up(pod(f"uid-{next(uids)}"), CONTENTS, allocatable={}), rounds=40)
    for uid in volumes.known_uids():
        volumes.tear_down(uid)
