"""What a takeover would do, judged by the files of a kubelet's node and by a real kubelet v1.36."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from engine.api.pod import Pod
from engine.api.qos import SOURCE_ANNOTATION
from engine.cpumanager.restoring import LostCpus, RestoredCpus
from engine.cpumanager.state import CpuState
from engine.cri.records import PodRecord
from engine.csi.paths import device_data
from engine.csi.volume_data import VolumeData, write_device, write_published
from engine.devices.checkpoint import Checkpoint, CheckpointEntry
from engine.dra.table import ClaimState, PreparedDevice
from engine.memorymanager.restoring import LostMemory, RestoredMemory
from engine.memorymanager.state import Block, MemoryState
from engine.node.spec.cri_config import container_hash
from engine.plugins.watcher import MAX_DEPTH
from engine.shadow import takeover_drivers
from engine.shadow.takeover import (
    Holdings,
    NodeFinding,
    PodFate,
    PublishedVolume,
    driver_findings,
    pod_fates,
    summary,
)
from engine.shadow.takeover_drivers import CSI, csi_volumes, registered_drivers
from engine.shadow.takeover_survey import TakeoverSurvey, rejected_manifests
from engine.testing.csi_driver import SampleCsiDriver
from tests.shadow.observations import observed, pod, ran, record
from tests.system.busybox import container
from tests.system.kubelet import Kubelet, needs_kubelet
from tests.waiting import wait_until

PINNING: dict[str, Any] = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "kubeReserved": {},
    "memoryManagerPolicy": "Static",
    "systemReserved": {"memory": "64Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "64Mi"}}],
    "topologyManagerPolicy": "single-numa-node",
}
ADOPTED = "adopted without another admission"


def held(one: Pod) -> PodRecord:
    """Return a runtime's record of a pod whose only container runs as its specification requires."""
    return record(one, replace(ran(0), hash=container_hash(one.spec.containers[0])))


def static(name: str, **status: Any) -> Pod:
    one = pod(name, **status)
    one.metadata.annotations = {SOURCE_ANNOTATION: "file"}
    return one


def fate(one: Pod, found: PodRecord | None = None, holdings: Holdings | None = None) -> PodFate:
    seen = observed([one], [held(one) if found is None else found])
    (only,) = pod_fates(seen, holdings or Holdings())
    return only


def test_a_pod_that_runs_as_specified_is_kept() -> None:
    assert fate(pod("p")) == PodFate("default/p", "kept", ADOPTED, "kept")
    assert fate(static("p")).fate == "kept"


def test_a_changed_container_restarts() -> None:
    one = pod("p")
    other = pod("p", {"containers": [{"name": "c", "image": "another"}]})
    found = fate(one, held(other))
    assert found.fate == "restarts"
    assert "c" in found.why
    as_static = fate(static("p"), held(other))
    assert as_static.fate == "restarts"
    assert "manifest" in as_static.why


def test_a_pod_without_a_usable_sandbox_restarts() -> None:
    one = pod("p")
    found = held(one)
    found.sandboxes = [replace(found.sandboxes[0], ready=False)]
    assert fate(one, found).fate == "restarts"


def test_a_pod_of_which_nothing_runs_is_started() -> None:
    one = pod("p", phase="Pending")
    found = fate(one, PodRecord(one.uid, "p", "default"))
    assert (found.fate, found.why) == ("kept", "nothing of it runs yet; it is admitted and started")


def test_a_pod_that_has_ended_stays_so_unless_a_manifest_wants_it() -> None:
    assert fate(pod("p", phase="Succeeded"))[1:4] == ("ended", "has ended as Succeeded", "stays ended")
    evicted = fate(static("p", phase="Failed", reason="Evicted"))
    assert (evicted.fate, evicted.back) == ("ended", "judged again")
    assert "(Evicted); without an API server" in evicted.why
    assert fate(pod("p", phase="Failed", reason="Evicted")).back == "stays ended"


def test_drivers_of_volumes_and_claims_are_named() -> None:
    found = list(driver_findings("volumes", Counter({"here": 2, "away": 1}), {"here", "other"}))
    assert [(one.subject, one.stops) for one in found] == [("away", True), ("here", False)]
    assert "start it" in found[0].text
    holdings = Holdings()
    holdings.add_volumes([PublishedVolume("uid-p", "data", "here", "vol-1")])
    claim = ClaimState("c1", "gpu", "default", {"uid-p"}, {"gpus": (PreparedDevice("pool", "gpu-0"),)})
    holdings.add_claims([claim])
    assert fate(pod("p"), holdings=holdings).holds == (
        "CSI volume data: here vol-1", "claim default/gpu: gpus pool/gpu-0",
    )  # fmt: skip


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a directory below which paths of sockets are short enough."""
    with tempfile.TemporaryDirectory(prefix="kn-") as directory:
        yield Path(directory)


async def test_a_driver_that_answers_is_told_apart_from_one_that_left_its_socket(short: Path) -> None:
    registry = short / "plugins_registry"
    registry.mkdir()
    driver = SampleCsiDriver(short / "csi", registry, "sample.csi.example.com")
    await driver.start()
    try:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(registry / "left.sock"))
        assert await registered_drivers(short) == {(CSI, "sample.csi.example.com")}
        # Only its name was requested.
        assert not driver.status
    finally:
        await driver.stop()
    assert await registered_drivers(short) == set()


def test_published_volumes_are_found_and_a_damaged_record_stops(tmp_path: Path) -> None:
    volumes = tmp_path / "pods" / "uid-p" / "volumes" / "kubernetes.io~csi"
    for name in ("good", "bad", "without"):
        (volumes / name).mkdir(parents=True)
    data = VolumeData("sample.csi.example.com", "vol-1")
    write_published(volumes / "good", "good", data, "Persistent", "n1")
    (volumes / "bad" / "vol_data.json").write_text('{"driverName": "sample.csi')
    device = tmp_path / "pods" / "uid-p" / "volumeDevices" / "kubernetes.io~csi" / "raw"
    device.mkdir(parents=True)
    (device_data(tmp_path, "raw")).mkdir(parents=True)
    write_device(device_data(tmp_path, "raw"), "raw", VolumeData("sample.csi.example.com", "vol-2"), "n1")
    found, findings = csi_volumes(tmp_path)
    assert [(one.uid, one.name, one.handle) for one in found] == [
        ("uid-p", "good", "vol-1"), ("uid-p", "raw", "vol-2"),
    ]  # fmt: skip
    assert [Path(one.subject).parent.name for one in findings if one.stops] == ["bad", "without"]
    assert csi_volumes(tmp_path / "nowhere") == ([], [])


def test_assignments_are_kept_or_move() -> None:
    cpus = RestoredCpus(CpuState(0b1111), [LostCpus("uid-lost", "c", "9", "CPU 9 is offline")])
    cpus.state.assign("uid-p", "c", 0b0110)
    memory = RestoredMemory(MemoryState({}), [LostMemory("uid-lost", "c", (), "node 3 is gone")])
    memory.state.assign("uid-p", "c", (Block((0, 1), "memory", 4096),))
    entry = CheckpointEntry(
        pod_uid="uid-p", container_name="c", resource_name="example.com/gpu", device_ids={"0": ["b", "a"]}
    )
    holdings = Holdings()
    holdings.add_cpus(cpus)
    holdings.add_memory(memory)
    holdings.add_devices(Checkpoint(pod_device_entries=[entry]))
    with_data = pod(
        "p", {"containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "d", "emptyDir": {}}]}
    )
    assert fate(with_data, holdings=holdings).holds == (
        "c: CPUs 1-2",
        "c: 4096 bytes of memory on NUMA 0,1",
        "c: example.com/gpu a, b",
        "volume d (emptyDir)",
    )
    lost = fate(pod("lost"), holdings=holdings)
    assert lost.fate == "moves"
    assert lost.why == "c had CPUs 9: CPU 9 is offline; c had memory of its own: node 3 is gone"


def test_a_volume_without_a_driver_is_refused_at_the_next_start() -> None:
    flex = {"name": "old", "flexVolume": {"driver": "example.com/lvm"}}
    found = fate(pod("p", {"containers": [{"name": "c", "image": "i"}], "volumes": [flex]}))
    assert found.fate == "refused"
    assert found.why.endswith("no driver mounts its volumes old")
    assert found.holds == ("volume old (flexVolume)",)


def test_a_static_pod_that_is_being_resized_restarts_on_the_way_back() -> None:
    pending = {"type": "PodResizePending", "status": "True"}
    assert fate(static("p", conditions=[pending])).back.startswith("restarts if its resize")
    assert fate(pod("p", conditions=[pending])).back == "kept"


def test_changes_come_first_and_decide_the_exit_status() -> None:
    good, bad = pod("a"), pod("z")
    broken = held(pod("z", {"containers": [{"name": "c", "image": "another"}]}))
    fates = pod_fates(observed([good, bad], [held(good), broken]), Holdings())
    assert [one.pod for one in fates] == ["default/z", "default/a"]
    assert {name: count for name, count in summary(fates).items() if count} == {"restarts": 1, "kept": 1}
    assert TakeoverSurvey("n1", fates, []).changes
    assert not TakeoverSurvey("n1", fates[1:], [NodeFinding("gpu", "registers again")]).changes
    assert TakeoverSurvey("n1", fates[1:], [NodeFinding("file", "is rejected", stops=True)]).changes


def test_a_manifest_that_the_agent_rejects_is_found(tmp_path: Path) -> None:
    good = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [container()]},
    }
    bad = {**good, "spec": {"containers": [container()], "volumes": [{"name": "v", "gitRepo": {}}]}}
    (tmp_path / "good.yaml").write_text(yaml.safe_dump(good))
    (tmp_path / ".hidden").write_text("not a pod")
    assert list(rejected_manifests(str(tmp_path), "n1")) == []
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(bad))
    (finding,) = rejected_manifests(str(tmp_path), "n1")
    assert (finding.subject, finding.stops) == (str(tmp_path / "bad.yaml"), True)
    assert "spec.volumes[0]: a git repo volume" in finding.text
    assert list(rejected_manifests("", "n1")) == []


def test_it_is_never_done_without_check() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine.cli", "takeover"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "say --check" in done.stderr


@pytest.mark.containerd
@pytest.mark.root
@pytest.mark.slow
@needs_kubelet
@pytest.mark.skipif((os.cpu_count() or 0) < 2, reason="exclusive CPUs need two CPUs")
def test_the_check_of_a_real_kubelets_node(kubelet: Kubelet, tmp_path: Path) -> None:
    data = {"name": "data", "emptyDir": {}}
    pods: dict[str, dict[str, Any]] = {
        "data": {
            "volumes": [data],
            "containers": [container(volumeMounts=[{"name": "data", "mountPath": "/data"}])],
        },
        "init": {"initContainers": [container("first", "exit 0")], "containers": [container("main")]},
        "job": {"restartPolicy": "Never", "containers": [container(script="exit 0")]},
        "pinned": {"containers": [container(resources={"limits": {"cpu": "1", "memory": "64Mi"}})]},
    }
    manifests, config = tmp_path / "manifests", tmp_path / "kubelet.yaml"
    fields = {**yaml.safe_load(config.read_text()), **PINNING}
    config.write_text(yaml.safe_dump(fields))
    kubelet.start()
    wait_until(lambda: kubelet.logged("Starting kubelet"))
    for name, spec in pods.items():
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        (manifests / f"{name}.yaml").write_text(
            yaml.safe_dump({**document, "spec": {"terminationGracePeriodSeconds": 1, **spec}})
        )
    wait_until(lambda: kubelet.phases() == {**dict.fromkeys(pods, "Running"), "job": "Succeeded"})
    status, report = check(kubelet, tmp_path)
    assert report["counts"] == {"restarts": 0, "moves": 0, "refused": 0, "kept": 3, "ended": 1}
    assert (status, report["node"], report["findings"]) == (0, "n1", [])
    holds = {one["pod"]: (one["why"], one["holds"]) for one in report["pods"]}
    assert holds["default/data-n1"] == (ADOPTED, ["volume data (emptyDir)"])
    assert holds["default/pinned-n1"] == (
        ADOPTED, ["c: CPUs 1", f"c: {64 << 20} bytes of memory on NUMA 0"]
    )  # fmt: skip

    config.write_text(yaml.safe_dump({**fields, "reservedSystemCPUs": "1"}))
    (manifests / "broken.yaml").write_text("kind: Service\n")
    (tmp_path / "root" / "memory_manager_state").write_text("{")
    status, report = check(kubelet, tmp_path)
    assert status == 3
    assert [Path(one["subject"]).name for one in report["findings"] if one["stops"]] == [
        "memory_manager_state", "broken.yaml"
    ]  # fmt: skip
    moved = report["pods"][0]
    assert (moved["pod"], moved["fate"]) == ("default/pinned-n1", "moves")
    assert moved["why"].startswith("c had CPUs 1: ")
    assert report["counts"]["kept"] == 2


def check(kubelet: Kubelet, directory: Path) -> tuple[int, dict[str, Any]]:
    """Run `kubengine takeover --check`; return its exit status and its report."""
    done = subprocess.run(
        [sys.executable, "-m", "engine.cli", "takeover", "--check", "--json", "--kubelet", kubelet.url,
         "--config", str(directory / "kubelet.yaml"), "--root-dir", str(directory / "root")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


async def test_a_deep_tree_of_plugins_is_read_only_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path.joinpath("plugins_registry", *["d"] * (MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    asked: list[Path] = []

    async def name(socket: Path) -> None:
        asked.append(socket)

    monkeypatch.setattr(takeover_drivers, "_name", name)
    sockets = [tmp_path / "plugins_registry/s", deep.parent / "s", deep / "s"]
    for path in sockets:
        os.mknod(path, stat.S_IFSOCK | 0o600)
    assert await takeover_drivers.registered_drivers(tmp_path) == set()
    assert asked == sockets[:2]
