"""`/metrics/cadvisor` is read by Prometheus' own parser and has what the stock rules select."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from engine.cri.records import RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.node.usage.group import GroupSample, Pressure
from engine.node.usage.network import Interface
from engine.node.usage.sampler import NodeUsage, UsedGroup, UsedPod
from engine.server.cadvisor_metrics import cadvisor_metrics


def used(cgroup: str, container: ContainerRecord | None = None, **fields: object) -> UsedGroup:
    sample = GroupSample(cpu=2_500_000_000, memory=100, inactive_file=30, rss=60, **fields)  # type: ignore[arg-type]
    return UsedGroup(cgroup, sample, container=container)


def test_series_and_labels() -> None:
    container = ContainerRecord("id", "c", "s", RUNNING, 0, 1.0, started_at=7.5, image='i"mage')
    record = PodRecord("u", "p", "n", [SandboxRecord("s", True, 0, 5.0)], [container])
    pod = UsedPod(
        record,
        used("/kubepods/podu"),
        [
            used(
                "/kubepods/podu/id",
                container,
                quota=50_000,
                memory_limit=4096,
                faults=3,
                io=[("8:0", 1, 2, 3, 4)],
                pressure={"cpu": {"some": Pressure(1_500_000, 0, 0, 0)}},
            )
        ],
        used("/kubepods/podu/s"),
        [Interface("eth0", 1, 2, 3, 4, 5, 6, 7, 8)],
    )
    usage = NodeUsage(1000.9, used("/"), {"pods": used("/kubepods")}, [pod], [])
    found: dict[tuple[str, str, str], float] = {}
    for family in text_string_to_metric_families(cadvisor_metrics(usage).decode()):
        for sample in family.samples:
            found[sample.name, sample.labels.get("id", ""), sample.labels.get("interface", "")] = sample.value
            if sample.labels.get("id") == "/kubepods/podu/id":
                assert sample.labels["container"] == "c"
                assert sample.labels["image"] == 'i"mage'
                assert (sample.labels["namespace"], sample.labels["pod"]) == ("n", "p")
    own = "/kubepods/podu/id"
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
    assert found["machine_cpu_cores", "", ""] >= 1
