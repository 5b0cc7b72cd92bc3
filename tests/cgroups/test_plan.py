"""`kubengine cgroups plan` and `check` on the command line."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from engine.api.config import KubeletConfiguration
from engine.api.documents import parse_pods
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import CgroupsSection
from engine.cgroups.formulas.containers import container_resources
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.plan import plan
from engine.cli.cgroups import command

PODS = b"""
apiVersion: v1
kind: Pod
metadata: {name: g, uid: one}
spec:
  containers:
  - {name: a, resources: {requests: {cpu: "1", memory: 1Gi}, limits: {cpu: "1", memory: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: e}
spec:
  containers: [{name: a}]
"""
BURSTABLE = b"""
apiVersion: v1
kind: Pod
metadata: {name: b}
spec: {containers: [{name: a, resources: {requests: {memory: 1Gi}}}]}
"""
CAPACITY = {"cpu": 3000, "memory": 8 << 30, "pid": 1000, "hugepages-2Mi": 0}


def planned(version: int, manifest: bytes = PODS, **config) -> dict[str, dict[str, str]]:
    pods, _ = parse_pods(manifest, "pods")
    groups = plan(
        pods,
        KubeletConfiguration(eviction_hard={}, **config),
        CgroupsSection(),
        CAPACITY,
        version=version,
        formula="logarithmic",
    )
    return {group.path: dict(group.files) for group in groups}


def test_without_a_reservation_policy_nothing_is_protected():
    """As in the kubelet v1.36: the gate alone throttles."""
    for policy in ("None", "TieredReservation"):
        gates = {"MemoryQoS": True}
        groups = planned(2, feature_gates=gates, memory_reservation_policy=policy)
        protected = [path for path, files in groups.items() if files.get("memory.min", "0") != "0"]
        assert bool(protected) == (policy == "TieredReservation")
    (pod,), _ = parse_pods(BURSTABLE, "pods")
    config = KubeletConfiguration(feature_gates=gates)
    rules = CgroupSettings.resolve(config, {"cpu": 3000, "memory": 8 << 30}, cgroup_v2=True).containers
    unified = container_resources(pod, pod.spec.containers[0], rules).unified
    assert unified.keys() & {"memory.min", "memory.low", "memory.high"} == {"memory.high"}


def test_the_root_protects_burstable_requests_in_both_ways():
    gates = {"MemoryQoS": True}
    groups = planned(2, BURSTABLE, feature_gates=gates, memory_reservation_policy="TieredReservation")
    gibi = str(1 << 30)
    assert (groups["/kubepods"]["memory.min"], groups["/kubepods"]["memory.low"]) == (gibi, gibi)
    level = groups["/kubepods/burstable"]
    assert (level.get("memory.min", "0"), level["memory.low"]) == ("0", gibi)


def test_every_level_on_v2():
    groups = planned(
        2,
        qos_reserved={"memory": "100%"},
        feature_gates={"MemoryQoS": True},
        memory_reservation_policy="TieredReservation",
    )
    assert list(groups) == [
        "/kubepods",
        "/kubepods/burstable",
        "/kubepods/besteffort",
        "/kubepods/podone",
        "/kubepods/podone/a",
        "/kubepods/besteffort/pode",
        "/kubepods/besteffort/pode/a",
    ]
    gibi = str(1 << 30)
    assert groups["/kubepods"]["memory.min"] == gibi
    assert groups["/kubepods"]["pids.max"] == "1000"
    assert groups["/kubepods/burstable"]["memory.max"] == str(7 << 30)
    assert groups["/kubepods/podone"] == {
        "cpu.weight": "100",
        "cpu.max": "100000 100000",
        "memory.max": gibi,
        "memory.min": gibi,
        "memory.low": "0",
        "memory.high": "max",
        "pids.max": "max",
        "hugetlb.2MB.max": "0",
    }
    assert groups["/kubepods/podone/a"]["memory.oom.group"] == "1"
    assert groups["/kubepods/besteffort/pode/a"]["memory.high"] == "max"


def test_every_level_on_v1_and_under_systemd():
    groups = planned(1, cgroup_driver="systemd", pod_pids_limit=64)
    path = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pode.slice"
    assert groups[path] == {
        "cpu.shares": "2",
        "cpu.cfs_quota_us": "-1",
        "memory.limit_in_bytes": "-1",
        "pids.max": "64",
        "hugetlb.2MB.limit_in_bytes": "0",
    }
    assert groups["/kubepods.slice"]["cpu.shares"] == "3072"


def test_the_command_prints_a_tree_and_json(tmp_path):
    file = tmp_path / "pods.yaml"
    file.write_bytes(PODS)
    arguments = ["plan", "-f", str(file), "--cpu", "3", "--memory", "8Gi", "--cpu-weight", "linear"]
    shown = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[0].split()[:4] == ["GROUP", "POD", "QOS", "cpu.weight"]
    assert any(line.split()[:4] == ["podone", "default/g", "Guaranteed", "39"] for line in lines)
    groups = json.loads(CliRunner().invoke(command, [*arguments, "--json", "--cgroup", "v1"]).stdout)
    container = next(group for group in groups if group["kind"] == "container")
    assert container["files"]["cpu.shares"] == "1024"
    assert container["oomScoreAdj"] == -997


def test_bad_input_is_one_error(tmp_path):
    file = tmp_path / "pods.yaml"
    file.write_text("kind: Pod\napiVersion: v1\nspec: {containers: 3}\n")
    with pytest.raises(InvalidInput, match="containers"):
        CliRunner().invoke(command, ["plan", "-f", str(file)], catch_exceptions=False)
    file.write_bytes(PODS)
    with pytest.raises(InvalidInput, match=r"default/e: metadata.uid: expected a uid"):
        CliRunner().invoke(command, ["check", "--pods", str(file)], catch_exceptions=False)


def test_reserved_groups_and_a_ceiling_are_planned():
    pods, _ = parse_pods(PODS, "pods")
    config = KubeletConfiguration(
        eviction_hard={},
        kube_reserved={"cpu": "500m", "memory": "1Gi"},
        system_reserved={"cpu": "500m", "memory": "1Gi", "pid": "100"},
        kube_reserved_cgroup="/kube",
        system_reserved_cgroup="/system",
        enforce_node_allocatable=["pods", "kube-reserved-compressible", "system-reserved"],
    )
    section = CgroupsSection(cpu_ceiling=True)
    groups = {group.path: group for group in plan(pods, config, section, CAPACITY)}
    assert groups["/kube"].files == {"cpu.weight": "20"}
    assert groups["/system"].kind == "reserved"
    assert groups["/system"].files == {"cpu.weight": "20", "memory.max": str(1 << 30), "pids.max": "100"}
    assert groups["/kubepods"].files["cpu.max"] == "200000 100000"
    assert groups["/kubepods"].files["memory.max"] == str(6 << 30)
    with pytest.raises(InvalidInput, match=r"^cgroups.cpuCeiling: needs cgroup v2"):
        plan(pods, config, section, CAPACITY, version=1)


def test_a_reserved_slice_keeps_its_name():
    groups = planned(
        2,
        cgroup_driver="systemd",
        system_reserved={"cpu": "1"},
        system_reserved_cgroup="/system.slice",
        enforce_node_allocatable=["pods", "system-reserved"],
    )
    assert groups["/system.slice"] == {"cpu.weight": "100"}


@pytest.mark.parametrize(
    ("version", "enforced", "least"),
    [
        (2, "system-reserved", str(1 << 30)),
        (2, "system-reserved-compressible", None),
        (1, "system-reserved", None),
    ],
)
def test_with_memory_qos_the_memory_of_a_reserved_group_is_protected(
    version: int, enforced: str, least: str | None
):
    groups = planned(
        version,
        system_reserved={"cpu": "1", "memory": "1Gi"},
        system_reserved_cgroup="/system",
        enforce_node_allocatable=["pods", enforced],
        feature_gates={"MemoryQoS": True},
    )
    assert groups["/system"].get("memory.min") == least


def test_unenforced_pods_get_the_whole_node():
    root = planned(2, kube_reserved={"memory": "1Gi"}, enforce_node_allocatable=["none"])["/kubepods"]
    assert root["memory.max"] == str(8 << 30)
