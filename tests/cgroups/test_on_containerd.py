"""The node's cgroups with real containers: the worked example, a memory hog, a live resize."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.cgroups.mounts import find_mounts
from engine.testing.containerd import Containerd
from engine.testing.images import BUSYBOX_TAG
from tests.node.conftest import Bench, eventually

pytestmark = [
    pytest.mark.containerd,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(find_mounts().version != 1, reason="reads cgroup v1 files"),
]

WAIT = "trap 'exit 0' TERM; while true; do sleep 0.1; done"
GI, MI = 1 << 30, 1 << 20


def container(name: str, script: str = WAIT, **resources: dict[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "image": BUSYBOX_TAG,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": resources,
    }


def amounts(cpu: str, memory: str) -> dict[str, str]:
    return {"cpu": cpu, "memory": memory}


@pytest.fixture
async def bench(tmp_path: Path, containerd: Containerd, private_cgroup_root: str) -> AsyncIterator[Bench]:
    bench = Bench(
        tmp_path,
        containerd.socket,
        cgroups_per_qos=True,
        enforce_node_allocatable=["pods"],
        cgroup_root=private_cgroup_root,
        qos_reserved={"memory": "100%"},
    )
    yield bench
    await bench.close()


def group(bench: Bench, controller: str, *below: str) -> Path:
    root = Path("/sys/fs/cgroup") / controller / bench.config.cgroup_root.lstrip("/") / "kubepods"
    return root.joinpath(*below)


def value(bench: Bench, file: str, *below: str) -> int:
    return int((group(bench, file.partition(".")[0], *below) / file).read_text())


def container_id(bench: Bench, name: str, index: int = 0) -> str:
    return bench.pod(name).status.container_statuses[index].container_id.rpartition("/")[2]


async def test_the_worked_example_on_real_containers(bench: Bench):
    await bench.start()
    one, two = amounts("500m", "1Gi"), amounts("1", "2Gi")  # halved: two CPUs are enough to admit them
    bench.write("g", {"containers": [container("a", requests=one, limits=one)]})
    bench.write(
        "b",
        {"containers": [container("a", requests=one, limits=one), container("b", requests=one, limits=two)]},
    )
    bench.write("e", {"containers": [container("a")]})
    await eventually(lambda: all(bench.phase(name) == "Running" for name in "gbe"), 30)
    guaranteed = f"pod{bench.pod('g').uid}"
    burstable = f"pod{bench.pod('b').uid}"
    best_effort = f"pod{bench.pod('e').uid}"
    first, second = container_id(bench, "b", 0), container_id(bench, "b", 1)
    shares = {
        (guaranteed,): 512,
        (guaranteed, container_id(bench, "g")): 512,
        ("burstable",): 1024,
        ("burstable", burstable): 1024,
        ("burstable", burstable, first): 512,
        ("burstable", burstable, second): 512,
        ("besteffort",): 2,
        ("besteffort", best_effort, container_id(bench, "e")): 2,
    }
    assert {path: value(bench, "cpu.shares", *path) for path in shares} == shares
    assert value(bench, "memory.limit_in_bytes", "burstable", burstable) == 3 * GI
    assert value(bench, "memory.limit_in_bytes", "burstable", burstable, second) == 2 * GI
    node = value(bench, "memory.limit_in_bytes")
    assert value(bench, "memory.limit_in_bytes", "burstable") == node - GI
    assert value(bench, "memory.limit_in_bytes", "besteffort") == node - 3 * GI
    manager: Any = bench.node.rooms["cgroups"]
    assert not {finding.kind for finding in manager.check()} & {"changed-file", "missing-group"}
    for name in "gbe":
        (bench.manifests / f"{name}.yaml").unlink()
    await eventually(lambda: not bench.node.pods(), 30)
    for controller in ("cpu", "memory", "blkio", "devices", "freezer", "pids", "cpuset", "systemd"):
        left = [path.name for path in group(bench, controller).rglob("*") if path.is_dir()]
        assert sorted(left) == ["besteffort", "burstable"], controller


async def test_a_memory_hog_is_oom_killed_in_its_own_pod(bench: Bench):
    await bench.start()
    limits = amounts("100m", "24Mi")
    hog = "sleep 1; dd if=/dev/zero of=/dev/null bs=96M count=1"
    bench.write("hog", {"restartPolicy": "Never", "containers": [container("a", hog, limits=limits)]})
    bench.write("calm", {"containers": [container("a", limits=limits)]})

    def reason() -> str:
        status = bench.pod("hog").status.container_statuses if bench.pod("hog") else None
        ended = status[0].state.terminated if status else None
        return ended.reason if ended is not None else ""

    await eventually(reason, 30)
    assert reason() == "OOMKilled"
    await eventually(lambda: bench.phase("hog") == "Failed")
    assert bench.phase("calm") == "Running"
    assert bench.pod("calm").status.container_statuses[0].restart_count == 0


async def test_a_manifest_resizes_a_live_container_up_and_down(bench: Bench):
    await bench.start()

    def write(cpu: str, memory: str) -> None:
        bench.write("g", {"containers": [container("a", limits=amounts(cpu, memory))]})

    write("250m", "64Mi")
    await eventually(lambda: bench.phase("g") == "Running", 30)
    uid, identity = bench.pod("g").uid, container_id(bench, "g")
    pod = f"pod{uid}"

    def has(quota: int, memory: int) -> bool:
        return all(
            value(bench, "cpu.cfs_quota_us", *path) == quota
            and value(bench, "memory.limit_in_bytes", *path) == memory
            for path in ((pod,), (pod, identity))
        )

    assert has(25_000, 64 * MI)
    for cpu, memory, quota, limit in (("1", "256Mi", 100_000, 256), ("100m", "32Mi", 10_000, 32)):
        write(cpu, memory)
        await eventually(lambda quota=quota, limit=limit: has(quota, limit * MI), 20)
        await eventually(lambda cpu=cpu: resources(bench).get("cpu") == cpu, 20)
        assert resources(bench)["memory"] == memory
    status = bench.pod("g").status.container_statuses[0]
    assert (bench.pod("g").uid, container_id(bench, "g"), status.restart_count) == (uid, identity, 0)
    assert bench.reasons().count("ResizeCompleted") == 2

    write("1000", "32Mi")
    await eventually(lambda: pending(bench) == "Infeasible", 20)
    assert has(10_000, 32 * MI)
    write("100m", "32Mi")
    await eventually(lambda: pending(bench) == "", 20)
    await asyncio.sleep(0)
    assert container_id(bench, "g") == identity


def resources(bench: Bench) -> dict[str, str]:
    actual = bench.pod("g").status.container_statuses[0].resources
    return {name: str(amount) for name, amount in ((actual and actual.limits) or {}).items()}


def pending(bench: Bench) -> str:
    conditions = bench.pod("g").status.conditions or []
    return next((c.reason for c in conditions if c.type == "PodResizePending"), "")
