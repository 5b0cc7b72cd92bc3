"""What dashboards ask of every kubelet, of nodes that live."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.api.errors import Refused
from engine.api.meta import ObjectMeta
from engine.api.pod import Container, EmptyDirVolume, HostPathVolume, Pod, PodSpec, Volume
from engine.api.status import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodStatus,
)
from engine.cri.client import RuntimeClient
from engine.metrics import Collected, Registry
from engine.node.sync.pod_metrics import PodMetrics
from engine.server.metrics_text import exposition
from engine.wire import cri_v1_pb2 as cri
from tests.cluster_rig import Cluster, Joined
from tests.node_rig import Rig, container
from tests.summaries import summary_of
from tests.waiting import eventually

Value = Callable[..., float]


def values_of(registry: Registry) -> Value:
    """Return a function that returns a sample by its name and labels, or 0 if there is none."""
    text = "".join(exposition(registry))
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return lambda name, **labels: found.get((name, frozenset(labels.items())), 0.0)


def worked(registry: Registry, operation: str) -> float:
    return values_of(registry)("kubelet_pod_worker_duration_seconds_count", operation_type=operation)


async def test_a_pod_of_the_api_is_measured_from_its_creation_to_its_end(
    joined: Joined, cluster: Cluster
) -> None:
    registry = (await joined.start()).registry
    await cluster.run("p")
    await cluster.until("p", "Running")
    counts = values_of(registry)
    for name in ("worker_start", "start", "start_total", "start_sli"):
        assert counts(f"kubelet_pod_{name}_duration_seconds_count") == 1, name
    assert worked(registry, "create") == 1
    assert worked(registry, "kill") == 0
    host = cluster.client.peer
    assert counts("rest_client_requests_total", code="201", method="POST", host=host) >= 1
    assert counts("rest_client_request_duration_seconds_count", verb="PATCH", host=host) >= 1
    await cluster.delete("p")
    await cluster.gone("p")
    await eventually(lambda: worked(registry, "kill") == worked(registry, "terminated") == 1)


async def test_a_static_pod_counts_where_no_creation_time_is_required(rig: Rig) -> None:
    node = await rig.start()
    rig.write("p", {"containers": [container()]})
    await eventually(lambda: rig.phase("p") == "Running")
    counts = values_of(node.registry)
    assert counts("kubelet_pod_start_duration_seconds_count") == 1
    assert counts("kubelet_pod_start_total_duration_seconds_count") == 0
    builds = node.registry.metrics["kubernetes_build_info"]
    assert isinstance(builds, Collected)
    ((labels, _),) = builds.collect()
    info = node.node_object().status.node_info
    assert info is not None
    assert info["kubeletVersion"] in labels
    assert f"linux/{info['architecture']}" in labels
    await eventually(lambda: values_of(node.registry)("kubelet_pleg_relist_interval_seconds_count") > 0)
    assert values_of(node.registry)("kubelet_pleg_last_seen_seconds") > 0


async def test_starts_and_their_failures_are_counted_by_kind(rig: Rig) -> None:
    node = await rig.start()
    init = {"name": "i", "image": "busybox:1", "imagePullPolicy": "IfNotPresent"}
    rig.write("p", {"initContainers": [init], "containers": [container()]})
    rig.write("q", {"containers": [container(image="none:1", imagePullPolicy="Never")]})

    def counted(what: str, **labels: str) -> float:
        return values_of(node.registry)(f"kubelet_{what}", **labels)

    await eventually(lambda: counted("started_containers_total", container_type="container") >= 2)
    failed = {"container_type": "container", "code": "ErrImageNeverPull"}
    await eventually(lambda: counted("started_containers_errors_total", **failed) >= 1)
    assert counted("started_containers_total", container_type="init_container") == 1
    assert counted("started_containers_errors_total", container_type="init_container") == 0
    assert counted("started_pods_total") == 2
    assert counted("run_podsandbox_duration_seconds_count", runtime_handler="") == 2
    assert counted("started_pods_errors_total") == 0
    for which in ("desired", "active"):
        assert counted(f"{which}_pods", static="true") == 2
        assert counted(f"{which}_pods", static="") == 0


async def test_a_sandbox_that_the_runtime_refuses_is_counted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any) -> str:
        raise Refused("no")

    monkeypatch.setattr(RuntimeClient, "run_pod_sandbox", refused)
    node = await rig.start()
    rig.write("p", {"containers": [container()]})
    await eventually(lambda: values_of(node.registry)("kubelet_started_pods_errors_total") >= 1)
    counted = values_of(node.registry)
    assert counted("kubelet_started_pods_total") >= 1
    assert counted("kubelet_run_podsandbox_errors_total", runtime_handler="") >= 1


async def test_pods_older_than_the_agent_are_not_measured_again(rig: Rig) -> None:
    await rig.start()
    rig.write("p", {"containers": [container()]})
    await eventually(lambda: rig.phase("p") == "Running")
    node = await rig.restart()
    await eventually(lambda: worked(node.registry, "create") == 1)
    assert values_of(node.registry)("kubelet_pod_start_duration_seconds_count") == 0


CREATED = datetime(2026, 1, 1, 0, 0, 0, tzinfo=UTC)
NOW = CREATED.timestamp() + 100.0
RUNS = ContainerState(running=ContainerStateRunning())
WAITS = ContainerState(waiting=ContainerStateWaiting())


def status(name: str, state: ContainerState) -> ContainerStatus:
    return ContainerStatus(name=name, ready=False, restart_count=0, image="i", image_id="i", state=state)


def a_pod(*states: ContainerState, **spec: Any) -> Pod:
    pod = Pod(
        metadata=ObjectMeta(name="p", namespace="default", uid="u", creation_timestamp=CREATED),
        spec=PodSpec(containers=[Container(name="c")], **spec),
    )
    pod.status = PodStatus(phase="Running", container_statuses=[status("c", state) for state in states])
    return pod


def test_pulls_and_init_containers_are_left_out_of_the_time_that_is_promised() -> None:
    metrics = PodMetrics(registry := Registry())
    metrics.seen("u", CREATED.timestamp() + 1.0, 1)
    metrics.pulled("u", 20.0)
    metrics.pulled("u", 5.0)
    metrics.pulled("other", 50.0)
    begun = CREATED.replace(second=30)
    ended = ContainerStateTerminated(exit_code=0, started_at=begun, finished_at=begun.replace(second=40))
    pod = a_pod(RUNS)
    pod.status.init_container_statuses = [status("i", ContainerState(terminated=ended))]
    metrics.status_published(pod, NOW)
    metrics.status_published(pod, NOW + 1.0)
    sums = values_of(registry)
    assert sums("kubelet_pod_start_duration_seconds_sum") == 99.0
    assert sums("kubelet_pod_start_total_duration_seconds_sum") == 100.0
    assert sums("kubelet_pod_start_sli_duration_seconds_sum") == 65.0


def test_every_container_has_to_start() -> None:
    metrics = PodMetrics(registry := Registry())
    metrics.seen("u", CREATED.timestamp(), 1)
    metrics.status_published(a_pod(RUNS, WAITS), NOW)
    counts = values_of(registry)
    assert counts("kubelet_pod_start_duration_seconds_count") == 1
    assert counts("kubelet_pod_start_total_duration_seconds_count") == 0
    metrics.status_published(a_pod(RUNS, RUNS), NOW)
    assert values_of(registry)("kubelet_pod_start_total_duration_seconds_count") == 1
    metrics.forget("u")


@pytest.mark.parametrize(
    ("volume", "promised"),
    [
        (Volume(name="v", empty_dir=EmptyDirVolume()), 1),
        (Volume(name="v", host_path=HostPathVolume(path="/tmp")), 0),
    ],
    ids=["empty directory", "host path"],
)
def test_nothing_is_promised_of_pods_with_state(volume: Volume, promised: int) -> None:
    metrics = PodMetrics(registry := Registry())
    metrics.seen("u", CREATED.timestamp(), 1)
    metrics.status_published(a_pod(RUNS, volumes=[volume]), NOW)
    counts = values_of(registry)
    assert counts("kubelet_pod_start_sli_duration_seconds_count") == promised
    assert counts("kubelet_pod_start_total_duration_seconds_count") == 1


async def test_writable_layers_have_their_own_file_system_where_the_runtime_reports_it(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(place: Path, used: int) -> cri.FilesystemUsage:
        return cri.FilesystemUsage(
            fs_id=cri.FilesystemIdentifier(mountpoint=str(place)), used_bytes=cri.UInt64Value(value=used)
        )

    async def image_fs_info(runtime: RuntimeClient) -> cri.ImageFsInfoResponse:
        return cri.ImageFsInfoResponse(image_filesystems=[images], container_filesystems=[containers])

    images, containers = usage(tmp_path, 7), usage(Path("/proc"), 9)
    node = await rig.start()
    monkeypatch.setattr(RuntimeClient, "image_fs_info", image_fs_info)
    shown = (await summary_of(node))["node"]["runtime"]
    assert (shown["imageFs"]["usedBytes"], shown["containerFs"]["usedBytes"]) == (7, 9)
    assert shown["imageFs"]["capacityBytes"] > shown["containerFs"]["capacityBytes"] == 0
    containers = images
    shown = (await summary_of(node))["node"]["runtime"]
    assert shown["imageFs"] == shown["containerFs"]


async def test_a_summary_of_cpu_and_memory_reads_no_file_system(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(runtime: RuntimeClient) -> cri.ImageFsInfoResponse:
        raise AssertionError("the runtime's file systems were asked for")

    node = await rig.start()
    rig.write("p", {"containers": [container()]})
    await eventually(lambda: rig.phase("p") == "Running")
    monkeypatch.setattr(RuntimeClient, "image_fs_info", never)
    monkeypatch.setattr("engine.node.stats.summary.disk_usage", never)
    summary = json.loads(b"".join(await node.cpu_and_memory_summary()))
    expected = {"nodeName", "startTime", "cpu", "memory", "swap", "systemContainers"}
    assert set(summary["node"]) == expected
    (pod,) = summary["pods"]
    assert pod["podRef"]["name"] == "p-n1"
    assert {"volume", "network", "ephemeral-storage", "process_stats"} & set(pod) == set()
    (own,) = pod["containers"]
    assert own["cpu"]["usageCoreNanoSeconds"] >= 0
    assert {"logs", "rootfs"} & set(own) == set()
