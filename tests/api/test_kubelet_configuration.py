"""Configurations as they are on nodes: zeros, nulls, unknown fields, and a file as kubeadm writes it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.documents import CONTAINERD, load_config
from engine.api.errors import InvalidInput
from engine.eviction.thresholds import thresholds_from_config
from engine.images.policy import ImageGCPolicy

KUBEADM = Path(__file__).parent / "kubeadm-kubelet.yaml"
EVERY_FIELD = Path(__file__).parent / "every-kubelet-field.yaml"
"""The names of all fields that the v1.36 type has."""


def load(tmp_path: Path, text: str) -> KubeletConfiguration:
    file = tmp_path / "kubelet.yaml"
    file.write_text("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + text)
    return load_config([file])[0]


def test_a_file_as_kubeadm_writes_it_means_the_defaults(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = load_config([KUBEADM])[0]
    assert not caplog.records
    assert (config.runtime_request_timeout, config.file_check_frequency) == (120, 20)
    assert (config.sync_frequency, config.volume_stats_agg_period) == (60, 60)
    assert (config.node_status_update_frequency, config.node_status_report_frequency) == (10, 300)
    assert (config.image_minimum_gc_age, config.image_maximum_gc_age) == (120, 0)
    assert (config.eviction_pressure_transition_period, config.cpu_manager_reconcile_period) == (300, 10)
    assert config.streaming_connection_idle_timeout == 4 * 3600
    assert config.container_runtime_endpoint == CONTAINERD
    assert config.cgroup_driver == "systemd"
    assert config.authentication.x509.client_ca_file == "/etc/kubernetes/pki/ca.crt"
    assert config.authentication.webhook.cache_ttl == 120
    assert (config.authorization.mode, config.authorization.webhook.cache_unauthorized_ttl) == ("Webhook", 30)
    assert ImageGCPolicy.from_config(config).min_age == 120
    assert thresholds_from_config(config)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("maxPods: 0", "max_pods", 110),
        ("port: 0", "port", 10250),
        ("readOnlyPort: 0", "read_only_port", 0),
        ("healthzPort: 0", "healthz_port", 0),
        ("registryPullQPS: 0", "registry_pull_qps", 0),
        ("registryBurst: 0", "registry_burst", 10),
        ("containerLogMaxSize: ''", "container_log_max_size", "10Mi"),
        ("cgroupDriver: ''", "cgroup_driver", "cgroupfs"),
        ("topologyManagerPolicy: ''", "topology_manager_policy", "none"),
        ("podLogsDir: ''", "pod_logs_dir", "/var/log/pods"),
        ("podPidsLimit: -5", "pod_pids_limit", -1),
        ("resolvConf: ''", "resolv_conf", ""),
        ("enforceNodeAllocatable: []", "enforce_node_allocatable", []),
        ("enforceNodeAllocatable: null", "enforce_node_allocatable", ["pods"]),
        ("maxPods: null", "max_pods", 110),
        ("evictionHard: null", "eviction_hard", None),
        ("cpuCFSQuota: null", "cpu_cfs_quota", True),
        ("nodeStatusUpdateFrequency: 5s", "node_status_report_frequency", 5),
        ("nodeStatusUpdateFrequency: 10s", "node_status_report_frequency", 10),
        (
            "memoryReservationPolicy: TieredReservation\nfeatureGates: {MemoryQoS: true}",
            "memory_reservation_policy",
            "TieredReservation",
        ),
        ("memoryReservationPolicy: ''", "memory_reservation_policy", "None"),
        ("tlsCurvePreferences: [29, 4588]", "tls_curve_preferences", [29, 4588]),
        ("containerRuntimeEndpoint: unix:///x", "container_runtime_endpoint", "unix:///x"),
        ("maxPods: 10.0", "max_pods", 10),
        ("maxPods: 10\nmaxPods: 20", "max_pods", 20),
    ],
)
def test_zeros_nulls_and_doubles(tmp_path: Path, text: str, field: str, value: Any) -> None:
    assert getattr(load(tmp_path, text + "\n"), field) == value


def test_null_sections_are_sections_left_out(tmp_path: Path) -> None:
    config = load(tmp_path, "authentication:\nauthorization: {webhook: null}\nmemorySwap: null\nlogging:\n")
    assert config == load(tmp_path, "")


def test_without_a_kubelet_configuration_no_runtime_is_named(tmp_path: Path) -> None:
    ours = tmp_path / "ours.yaml"
    ours.write_text("kind: KubengineConfiguration\n")
    assert load_config([ours])[0].container_runtime_endpoint == ""


def test_every_field_of_v1_36_is_known(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load_config([EVERY_FIELD])
    assert not caplog.records


def test_unknown_fields_are_reported_and_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "maxPodz: 3\nauthentication: {x509: {caFile: a}}\nmaxPods: 7\n"
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path, text).max_pods == 7
    said = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert said == ["maxPodz: unknown field", "authentication.x509.caFile: unknown field"]


@pytest.mark.parametrize("text", ["syncFrequency: 10", "maxPods: many", "authentication: x", "maxPods: 1.5"])
def test_a_value_of_the_wrong_type_stays_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match=text.partition(":")[0]):
        load(tmp_path, text + "\n")
