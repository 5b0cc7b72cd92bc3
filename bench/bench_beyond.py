"""What features beyond the kubelet cost where they are switched on, at each observation.

`pytest bench/bench_beyond.py`. docs/beyond-the-kubelet.md has the figures.
"""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.kubengine_config import CgroupsSection, ProbesSection
from engine.api.pod import Pod
from engine.api.struct import decode_hook
from engine.cgroups.best_effort_limiter import BestEffortLimiter
from engine.cgroups.manager import CgroupManager
from engine.eviction.contention import CPU_PRESSURE, Contention, StallReader
from engine.eviction.stall import stalled
from engine.host.cgroupfs.mounts import readable_mounts
from engine.host.cgroupfs.usage import HeldFile
from engine.host.tasks import Tasks
from engine.images.keep_patterns import KeepPatterns
from engine.images.layers import Layer, removal_order
from engine.probes.beyond import beyond
from engine.testing.uml import run_in_uml

ROOT = Path(__file__).parents[1]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups")


def pod(uid: str, probes: bool = False) -> Pod:
    container = {"name": "c", "image": "x"}
    if probes:
        container |= {f"{type}Probe": {"httpGet": {"port": 80}} for type in ("liveness", "readiness")}
    document = {"metadata": {"name": uid, "uid": uid}, "spec": {"containers": [container]}}
    return msgspec.convert(document, Pod, dec_hook=decode_hook, strict=False)


def test_memory_stall_look(benchmark) -> None:
    """One file; the machine's, as cgroup v1 has none for pods."""
    file = HeldFile(Path("/proc/pressure/memory"))
    benchmark(lambda: stalled(file.read(), b"full", b"avg10"))
    file.close()


def test_condition_look(benchmark) -> None:
    reader, one = StallReader([CPU_PRESSURE], readable_mounts(), "/"), Contention(CPU_PRESSURE, 50, 60.0)
    benchmark(lambda: one.update(reader.read(CPU_PRESSURE), time.monotonic()))
    reader.close()


@pytest.fixture
def manager() -> Iterator[CgroupManager]:
    manager = CgroupManager(
        config=KubeletConfiguration(cgroup_root=f"/kubengine-bench-{uuid.uuid4().hex[:8]}", eviction_hard={}),
        section=CgroupsSection(best_effort_ceiling=80),
        capacity={"cpu": 1000 * (os.cpu_count() or 1), "memory": 1 << 30, "pid": 1000},
    )
    manager.start()
    yield manager
    manager.remove_all()
    manager.stop()


@needs_root
@pytest.mark.parametrize("pods", [0, 1])
def test_best_effort_ceiling_look(benchmark, manager, pods) -> None:
    for number in range(pods):
        manager.create_pod(pod(f"e{number}"))
    rules = manager.settings.best_effort_limit
    assert rules is not None
    limiter = BestEffortLimiter(manager, rules, decisions=Decisions(time.time), tasks=Tasks())
    benchmark(limiter.update)


def test_ten_keep_patterns_against_an_image(benchmark) -> None:
    patterns = KeepPatterns([f"registry.example.com/team{number}/*" for number in range(10)])
    names = ["registry.example.org/shop/web:1", "registry.example.org/shop/web@sha256:" + "0" * 64]
    benchmark(lambda: patterns.matching(names))


def test_order_of_1000_images_by_layers(benchmark) -> None:
    layers = [
        tuple(Layer(f"{image // 10}-{n}", 1 << 20) for n in range(image % 10 + 1)) for image in range(1000)
    ]
    benchmark(lambda: removal_order(layers, [0.0] * 1000, range(1000)))


def test_what_a_pods_probes_have_beyond_the_kubelets(benchmark) -> None:
    """Once per decision about a pod's admission."""
    one, section = pod("p", probes=True), ProbesSection(network="pod")
    benchmark(lambda: beyond(one, section))


def test_an_empty_dir_by_quota_and_by_walk(tmp_path: Path) -> None:
    """ext4 with 5,000 files in a kernel in user mode, which is slow: compare the two."""
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.truncate(256 << 20)
    options = ["-q", "-O", "quota,project", "-E", "quotatype=prjquota"]
    subprocess.run(["mkfs.ext4", *options, disk], check=True)
    seen = run_in_uml(
        f"""
        import pathlib, time
        sys.path[:0] = [{str(ROOT)!r}]
        from engine.host.disks import project_quota
        from engine.host.trees import disk_usage
        from tests.eviction.quota_scene import mounted
        volume = mounted(pathlib.Path(SCRATCH), "ext4") / "v"
        volume.mkdir()
        project_quota.assign(volume, 1048577)
        for number in range(5000):
            (volume / str(number)).touch()
        def least(work):
            lasted = []
            for _ in range(9):
                began = time.perf_counter()
                work()
                lasted.append(time.perf_counter() - began)
            return min(lasted) * 1e6
        report([least(lambda: project_quota.counted(volume, 1048577)), least(lambda: disk_usage(volume))])
        """,
        disk=disk,
    )
    print("\n{:.0f} µs by quota, {:.0f} µs by walk".format(*seen))
