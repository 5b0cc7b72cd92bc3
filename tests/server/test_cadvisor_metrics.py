"""`/metrics/cadvisor` is read by Prometheus' own parser and has what the stock rules select."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.cri.records import RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.node.stats.filesystems import Filesystem
from engine.node.stats.group import Groups
from engine.node.stats.network import Interface
from engine.node.stats.used import NodeUsage, UsedGroup, UsedPod
from engine.server import cadvisor_metrics as cadvisor_metrics_module
from engine.server.cadvisor_metrics import CadvisorPage
from tests.laid_out_cgroups import laid_out

EVERYWHERE = {
    "cpu.stat": "usage_usec 2500000\n",
    "memory.current": "100\n",
    "memory.stat": "inactive_file 30\nactive_file 20\nanon 60\n",
}
LIMITED = {
    "cpu.max": "50000 100000\n",
    "cgroup.procs": "77\n",
    "memory.max": "4096\n",
    "memory.stat": "inactive_file 30\nanon 60\npgfault 3\npgmajfault 0\n",
    "io.stat": "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n",
    "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n",
}


def test_series_and_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cadvisor_metrics_module, "device_name", lambda major, minor: f"/dev/sd{major}{minor}")
    groups = Groups()

    def used(*cgroups: str, container: ContainerRecord | None = None) -> list[UsedGroup]:
        for cgroup in cgroups:
            directory = tmp_path / cgroup.strip("/")
            directory.mkdir(parents=True, exist_ok=True)
            own = container is not None and cgroup.endswith(container.id)
            for name, text in (EVERYWHERE | (LIMITED if own else {})).items():
                (directory / name).write_text(text)
        first = groups.add(cgroups)
        return [UsedGroup(cgroup, row) for row, cgroup in enumerate(cgroups, first)]

    container = ContainerRecord("id", "c", "s", RUNNING, 0, 1.0, started_at=7.5, image='i"mage')
    record = PodRecord("u", "p", "n", [SandboxRecord("s", True, 0, 5.0)], [container])
    whole, inner, sandbox = used(
        "/kubepods/podu", "/kubepods/podu/id", "/kubepods/podu/s", container=container
    )
    inner = UsedGroup(inner.cgroup, inner.row, "id", container)
    pod = UsedPod(record, whole, [inner], UsedGroup(sandbox.cgroup, sandbox.row, "s"))
    (root,), (pods,) = used("/"), used("/kubepods")
    gone = UsedGroup("/gone", groups.add(["/gone"]))
    network = {"u": [Interface("eth0", 1, 2, 3, 4, 5, 6, 7, 8)]}
    process = tmp_path / "proc/77"
    (process / "fd").mkdir(parents=True)
    (process / "fd/0").symlink_to("socket:[1]")
    (process / "limits").write_text(
        "Max open files            unlimited            unlimited            files\n"
    )
    table = groups.read(laid_out(tmp_path))
    groups.count_descriptors(table, laid_out(tmp_path), tmp_path / "proc")
    usage = NodeUsage(
        1000.9,
        table,
        root,
        {"pods": pods, "runtime": gone},
        [pod],
        [],
        (0, 0),
        network,
        filesystems=[
            Filesystem("/dev/sda1", 4096, 1024, 70, 60, tuple(range(1500, 1511))),
            Filesystem("/dev/mapper/x", 1 << 40, 7, 0, 0),
        ],
    )
    disks: dict[tuple[str, str], float] = {}
    found: dict[tuple[str, str, str], float] = {}
    for family in text_string_to_metric_families(b"".join(CadvisorPage().text(usage)).decode()):
        for sample in family.samples:
            found[sample.name, sample.labels.get("id", ""), sample.labels.get("interface", "")] = sample.value
            if sample.labels.get("device", "/dev/sd80") != "/dev/sd80":
                assert (sample.labels["id"], sample.labels["pod"]) == ("/", "")
                disks[sample.name, sample.labels["device"]] = sample.value
            if sample.labels.get("id") == "/kubepods/podu/id":
                assert sample.labels["container"] == "c"
                assert sample.labels["image"] == 'i"mage'
                assert (sample.labels["namespace"], sample.labels["pod"]) == ("n", "p")
                assert sample.labels.get("device", "/dev/sd80") == "/dev/sd80"
    assert disks["container_fs_limit_bytes", "/dev/sda1"] == 4096
    assert disks["container_fs_usage_bytes", "/dev/sda1"] == 1024
    assert disks["container_fs_inodes_total", "/dev/sda1"] == 70
    assert disks["container_fs_inodes_free", "/dev/sda1"] == 60
    assert disks["container_fs_usage_bytes", "/dev/mapper/x"] == 7
    assert disks["container_fs_read_seconds_total", "/dev/sda1"] == 1.503
    assert disks["container_fs_io_current", "/dev/sda1"] == 1508
    assert disks["container_fs_io_time_weighted_seconds_total", "/dev/sda1"] == 1.51
    assert ("container_fs_io_current", "/dev/mapper/x") not in disks
    own = "/kubepods/podu/id"
    assert found["container_file_descriptors", own, ""] == 1
    assert found["container_sockets", own, ""] == 1
    assert found["container_ulimits_soft", own, ""] == -1
    assert found["container_cpu_usage_seconds_total", own, ""] == 2.5
    assert found["container_memory_working_set_bytes", own, ""] == 70
    assert found["container_spec_cpu_quota", own, ""] == 50_000
    assert found["container_spec_memory_limit_bytes", own, ""] == 4096
    assert found["container_spec_memory_limit_bytes", "/", ""] == 0
    assert found["container_fs_writes_total", own, ""] == 4
    assert found["container_pressure_cpu_waiting_seconds_total", own, ""] == 1.5
    assert found["container_start_time_seconds", own, ""] == 7.5
    assert found["container_last_seen", own, ""] == 1000
    assert found["container_network_transmit_bytes_total", "/kubepods/podu/s", "eth0"] == 5
    assert ("container_spec_cpu_quota", "/", "") not in found
    assert ("container_memory_working_set_bytes", "/gone", "") not in found
    assert found["machine_cpu_cores", "", ""] >= 1
