"""A wrong value of a field ends the start with one error naming file and field, in the kubelet's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from engine.api.config import KubeletConfiguration
from engine.api.documents import load_config
from engine.api.errors import InvalidInput
from engine.cli.agent.kubelet_config import load_kubelet_config

WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"cpuCFSQuotaPeriod": "50ms", "featureGates": {"CustomCPUCFSQuotaPeriod": False}},
        "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) 50ms requires feature gate CustomCPUCFSQuotaPeriod",
    ),
    ({"oomScoreAdj": 1001}, "oomScoreAdj (--oom-score-adj) 1001 must be between -1000 and 1000, inclusive"),
    ({"maxOpenFiles": -1}, "maxOpenFiles (--max-open-files) -1 must not be a negative number"),
    ({"registryPullQPS": -1}, "registryPullQPS (--registry-qps) -1 must not be a negative number"),
    ({"registryBurst": -2}, "registryBurst (--registry-burst) -2 must not be a negative number"),
    ({"kubeAPIQPS": -1}, "kubeAPIQPS (--kube-api-qps) -1 must not be a negative number"),
    ({"kubeAPIBurst": -1}, "kubeAPIBurst (--kube-api-burst) -1 must not be a negative number"),
    ({"iptablesDropBit": 32}, "iptablesDropBit (--iptables-drop-bit) 32 must be between 0 and 31, inclusive"),
    (
        {"systemCgroups": "/system"},
        "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified",
    ),
    ({"runOnce": True}, "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set"),
    (
        {"hairpinMode": "off"},
        'option "off" specified for hairpinMode (--hairpin-mode). '
        'Valid options are "none", "hairpin-veth" or "promiscuous-bridge"',
    ),
    (
        {"logging": {"format": "xml"}},
        'logging.format: Invalid value: "xml": Unsupported log format',
    ),
    (
        {"logging": {"flushFrequency": "-1s"}},
        'logging.flushFrequency: Invalid value: "-1s": Must be greater than zero',
    ),
    (
        {"logging": {"flushFrequency": -5}},
        "logging.flushFrequency: Invalid value: -5: Must be greater than zero",
    ),
    (
        {"logging": {"verbosity": 2**31}},
        "logging.verbosity: Invalid value: 2147483648: Must be <= 2147483647",
    ),
    (
        {"logging": {"format": "json", "vmodule": [{"filePattern": "a", "verbosity": 1}]}},
        "logging.vmodule: Forbidden: Only supported for text log format",
    ),
    (
        {"logging": {"vmodule": [{"filePattern": "a,b", "verbosity": 1}]}},
        'logging.vmodule[0]: Invalid value: "a,b": File pattern must not contain equal sign or comma',
    ),
    (
        {"logging": {"options": {"json": {"splitStream": True}}}},
        "logging.options.json.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled",
    ),
    (
        {"logging": {"options": {"text": {"infoBufferSize": "1Ki"}}}},
        "logging.options.text.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled",
    ),
    (
        {"enableSystemLogQuery": True, "enableSystemLogHandler": False},
        "enableSystemLogHandler is required for enableSystemLogQuery",
    ),
    ({"syncFrequency": "-1s"}, "syncFrequency (--sync-frequency) -1s must not be a negative number"),
    (
        {"configMapAndSecretChangeDetectionStrategy": "Poll"},
        'configMapAndSecretChangeDetectionStrategy "Poll" must be one of Get, Cache, Watch',
    ),
    ({"port": 70000}, "port (--port) 70000 must be between 1 and 65535, inclusive"),
    (
        {"cpuCFSQuotaPeriod": "2s"},
        "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) 2s must be between 1ms and 1sec, inclusive",
    ),
    (
        {"imageGCHighThresholdPercent": 101},
        "imageGCHighThresholdPercent (--image-gc-high-threshold) 101 must be between 0 and 100, inclusive",
    ),
    (
        {"imageGCLowThresholdPercent": 90},
        "imageGCLowThresholdPercent (--image-gc-low-threshold) 90 must be less than "
        "imageGCHighThresholdPercent (--image-gc-high-threshold) 85",
    ),
    ({"imageMinimumGCAge": "-1m"}, "imageMinimumGCAge -1m0s must not be negative"),
    ({"imageMaximumGCAge": "1m"}, "imageMaximumGCAge 1m0s must be greater than imageMinimumGCAge 2m0s"),
    (
        {"reservedSystemCPUs": "0", "kubeReservedCgroup": "/kube"},
        "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup "
        "(--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)",
    ),
    (
        {"registerWithTaints": [{"key": "a b", "effect": "NoSchedule"}]},
        'invalid taint: registerWithTaints[0].key: "a b" is not a label\'s name',
    ),
    (
        {"registerWithTaints": [{"key": "a", "value": "b c", "effect": "NoSchedule"}]},
        'invalid taint: registerWithTaints[0].value: "b c" is not a label\'s value',
    ),
    (
        {"registerWithTaints": [{"key": "a", "effect": "NoWay"}]},
        'invalid taint: registerWithTaints[0].effect: "NoWay" must be one of '
        "NoSchedule, PreferNoSchedule, NoExecute",
    ),
    (
        {"memoryThrottlingFactor": 1.5},
        "memoryThrottlingFactor 1.5 must be greater than 0 and less than or equal to 1.0",
    ),
    (
        {"memoryReservationPolicy": "All"},
        'option "All" specified for memoryReservationPolicy. Valid options are "None" or "TieredReservation"',
    ),
    (
        {"memoryReservationPolicy": "TieredReservation"},
        'memoryReservationPolicy "TieredReservation" requires MemoryQoS feature gate to be enabled',
    ),
    (
        {"memorySwap": {"swapBehavior": "Swap"}},
        'memorySwap.swapBehavior "Swap" must be one of: "", "LimitedSwap" or "NoSwap"',
    ),
    (
        {"crashLoopBackOff": {"maxContainerRestartPeriod": "10m"}},
        "CrashLoopBackOff.MaxContainerRestartPeriod (got: 600 seconds) must be set between 1s and 300s",
    ),
    (
        {
            "crashLoopBackOff": {"maxContainerRestartPeriod": "10s"},
            "featureGates": {"KubeletCrashLoopBackOffMax": False},
        },
        "FeatureGate KubeletCrashLoopBackOffMax not enabled, "
        "CrashLoopBackOff.MaxContainerRestartPeriod must not be set",
    ),
    ({"podLogsDir": "/logs/ä"}, 'pod logs path "/logs/ä" must contain ASCII characters only'),
    ({"containerLogMaxWorkers": 0}, "containerLogMaxWorkers must be greater than or equal to 1"),
    (
        {"shutdownGracePeriod": "10s", "shutdownGracePeriodCriticalPods": "20s"},
        "shutdownGracePeriodCriticalPods 20s must be <= shutdownGracePeriod 10s",
    ),
    ({"shutdownGracePeriod": "500ms"}, "shutdownGracePeriod 500ms must be either zero or otherwise >= 1 sec"),
    (
        {
            "shutdownGracePeriod": "10s",
            "shutdownGracePeriodByPodPriority": [{"priority": 0, "shutdownGracePeriodSeconds": 5}],
        },
        "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time",
    ),
    (
        {"shutdownGracePeriod": "10s", "featureGates": {"GracefulNodeShutdown": False}},
        "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods "
        "requires feature gate GracefulNodeShutdown",
    ),
]


@pytest.mark.parametrize(("fields", "fault"), WRONG, ids=[fault[:40] for _, fault in WRONG])
def test_a_wrong_value_is_one_error_with_file_and_field(fields: dict[str, Any], fault: str, tmp_path: Path):
    file = tmp_path / "config.yaml"
    known = {"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1"}
    file.write_text(yaml.safe_dump({**known, **fields}))
    for load in (lambda: load_kubelet_config(file, None, {}), lambda: load_config([file])):
        with pytest.raises(InvalidInput) as caught:
            load()
        assert str(caught.value) == f"{file}: invalid configuration: {fault}"


@pytest.mark.parametrize(
    ("path", "fault"), [("logs", "must be absolute path"), ("/var//log", "must be normalized")]
)
def test_the_path_of_the_logs_is_one_that_the_runtime_understands_too(path: str, fault: str, tmp_path: Path):
    """`kubengine kubelet` makes a path absolute by the file that names it, `kubengine run` does not."""
    file = tmp_path / "config.yaml"
    file.write_text(f"kind: KubeletConfiguration\npodLogsDir: {path}\n")
    with pytest.raises(InvalidInput, match=f'pod logs path "{path}" {fault}'):
        load_config([file])
    assert load_kubelet_config(file, None, {}).pod_logs_dir.startswith("/")


def test_all_errors_are_reported_at_once():
    with pytest.raises(InvalidInput) as caught:
        load_kubelet_config(None, None, {"oom-score-adj": "-2000", "max-open-files": "-3"})
    assert "oomScoreAdj" in str(caught.value)
    assert "maxOpenFiles" in str(caught.value)


def test_zero_in_a_flag_is_zero_and_in_a_file_the_default(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text("kind: KubeletConfiguration\nmaxPods: 0\nevictionPressureTransitionPeriod: 0s\n")
    config = load_kubelet_config(file, None, {})
    assert (config.max_pods, config.eviction_pressure_transition_period) == (110, 300)
    flags = {"max-pods": "0", "eviction-pressure-transition-period": "0s", "minimum-image-ttl-duration": "0"}
    config = load_kubelet_config(file, None, flags)
    assert (config.max_pods, config.eviction_pressure_transition_period) == (0, 0)
    assert config.image_minimum_gc_age == 0


FIELDS = [field.encode_name for field in msgspec.structs.fields(KubeletConfiguration)]


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ("kind", "apiVersion")])
def test_a_value_of_the_wrong_type_is_an_error_that_names_its_field(name: str, tmp_path: Path):
    file = tmp_path / "config.yaml"
    known = {"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1"}
    file.write_text(yaml.safe_dump({**known, name: [["x"], 5]}))
    with pytest.raises(InvalidInput) as caught:
        load_kubelet_config(file, None, {})
    assert str(caught.value).startswith(f"{file}: ")
    assert name in str(caught.value)
