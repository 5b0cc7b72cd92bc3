"""Checks a KubeletConfiguration before a node starts with it, in the kubelet's words.

Source: kubelet v1.36, `ValidateKubeletConfiguration`. Fields that another part reads and refuses by itself
(eviction thresholds, CPU and topology policies, cgroup names) are checked there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Final

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.api.resources import is_qualified_name
from engine.api.validation.names import is_label_value

HAIRPIN_MODES: Final = ("none", "hairpin-veth", "promiscuous-bridge")
LAST_PORT: Final = 65535
SHORTEST_SHUTDOWN: Final = 1.0
LOG_FORMATS: Final = ("text", "json")
MOST_VERBOSE: Final = 2**31 - 1
MOST_SAMPLES: Final = 1_000_000
DEFAULT_CPU_PERIOD: Final = 0.1  # seconds
CPU_PERIODS: Final = (0.001, 1.0)
RESTART_PERIODS: Final = (1.0, 300.0)
SWAP_BEHAVIORS: Final = ("", "LimitedSwap", "NoSwap")
MEMORY_RESERVATIONS: Final = ("None", "TieredReservation")
TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_NOT_NEGATIVE: Final = {
    "eventBurst": ("event_burst", "event-burst"),
    "eventRecordQPS": ("event_record_qps", "event-qps"),
    "kubeAPIBurst": ("kube_api_burst", "kube-api-burst"),
    "kubeAPIQPS": ("kube_api_qps", "kube-api-qps"),
    "maxOpenFiles": ("max_open_files", "max-open-files"),
    "maxPods": ("max_pods", "max-pods"),
    "podsPerCore": ("pods_per_core", "pods-per-core"),
    "registryBurst": ("registry_burst", "registry-burst"),
    "registryPullQPS": ("registry_pull_qps", "registry-qps"),
    "syncFrequency": ("sync_frequency", "sync-frequency"),
}
_ONE_OF: Final = {
    "configMapAndSecretChangeDetectionStrategy": (
        "config_map_and_secret_change_detection_strategy",
        ("Get", "Cache", "Watch"),
    ),
}
_BETWEEN: Final = {
    "iptablesDropBit": ("iptables_drop_bit", "iptables-drop-bit", 0, 31),
    "iptablesMasqueradeBit": ("iptables_masquerade_bit", "iptables-masquerade-bit", 0, 31),
    "oomScoreAdj": ("oom_score_adj", "oom-score-adj", -1000, 1000),
}


def validate(config: KubeletConfiguration, subject: str) -> None:
    """Raise InvalidInput with everything that is wrong; `subject` names where the configuration is from."""
    checks = (
        *(_numbers, _cpu_period, _image_gc, _choices, _taints, _memory, _restarts, _logs, _logging),
        *(_tracing, _shutdown),
    )
    faults = [fault for check in checks for fault in check(config)]
    if faults:
        raise InvalidInput("; ".join(f"invalid configuration: {fault}" for fault in faults), subject=subject)


def _numbers(config: KubeletConfiguration) -> Iterator[str]:
    for field, (name, flag) in _NOT_NEGATIVE.items():
        value = getattr(config, name)
        if value < 0:
            yield f"{field} (--{flag}) {value} must not be a negative number"
    for field, (name, flag, least, most) in _BETWEEN.items():
        value = getattr(config, name)
        if not least <= value <= most:
            yield f"{field} (--{flag}) {value} must be between {least} and {most}, inclusive"
    for field, port, flag in (
        ("healthzPort", config.healthz_port, "healthz-port"),
        ("readOnlyPort", config.read_only_port, "read-only-port"),
    ):
        if not 0 <= port <= LAST_PORT:
            yield f"{field} (--{flag}) {port} must be between 0 and {LAST_PORT}, inclusive"
    # A port 0 in a file is the default by now; `--port 0` closes the port here, which the kubelet refuses.
    if not 0 <= config.port <= LAST_PORT:
        yield f"port (--port) {config.port} must be between 1 and {LAST_PORT}, inclusive"
    if config.node_status_max_images < -1:
        yield (
            f"nodeStatusMaxImages (--node-status-max-images) {config.node_status_max_images} "
            "must be -1 or greater"
        )
    if config.node_lease_duration_seconds <= 0:
        yield "nodeLeaseDurationSeconds must be greater than 0"


def _choices(config: KubeletConfiguration) -> Iterator[str]:
    if config.system_cgroups and not config.cgroup_root:
        yield (
            "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified"
        )
    if config.reserved_system_cpus and (config.system_reserved_cgroup or config.kube_reserved_cgroup):
        yield (
            "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup "
            "(--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)"
        )
    if config.run_once:
        yield "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set"
    if config.hairpin_mode not in HAIRPIN_MODES:
        none, veth, bridge = (f'"{mode}"' for mode in HAIRPIN_MODES)
        yield (
            f'option "{config.hairpin_mode}" specified for hairpinMode (--hairpin-mode). '
            f"Valid options are {none}, {veth} or {bridge}"
        )
    for field, (name, values) in _ONE_OF.items():
        if (value := getattr(config, name)) not in values:
            yield f"{field} {_quoted(value)} must be one of {_listed(values)}"


def _image_gc(config: KubeletConfiguration) -> Iterator[str]:
    high, low = config.image_gc_high_threshold_percent, config.image_gc_low_threshold_percent
    high_name = "imageGCHighThresholdPercent (--image-gc-high-threshold)"
    low_name = "imageGCLowThresholdPercent (--image-gc-low-threshold)"
    for name, percent in ((high_name, high), (low_name, low)):
        if not 0 <= percent <= 100:
            yield f"{name} {percent} must be between 0 and 100, inclusive"
    if low >= high:
        yield f"{low_name} {low} must be less than {high_name} {high}"
    least, most = config.image_minimum_gc_age, config.image_maximum_gc_age
    for name, age in (("imageMinimumGCAge", least), ("imageMaximumGCAge", most)):
        if age < 0:
            yield f"{name} {age} must not be negative"
    if 0 < most <= least:
        yield f"imageMaximumGCAge {most} must be greater than imageMinimumGCAge {least}"


def _taints(config: KubeletConfiguration) -> Iterator[str]:
    """Check taints before the Node is registered: the API server would refuse it with every attempt."""
    for index, taint in enumerate(config.register_with_taints or []):
        field = f"registerWithTaints[{index}]"
        if not is_qualified_name(taint.key):
            yield f"invalid taint: {field}.key: {_quoted(taint.key)} is not a label's name"
        if not is_label_value(taint.value):
            yield f"invalid taint: {field}.value: {_quoted(taint.value)} is not a label's value"
        if taint.effect not in TAINT_EFFECTS:
            effects = _listed(TAINT_EFFECTS)
            yield f"invalid taint: {field}.effect: {_quoted(taint.effect)} must be one of {effects}"


def _memory(config: KubeletConfiguration) -> Iterator[str]:
    factor, policy = config.memory_throttling_factor, config.memory_reservation_policy
    if not 0 < factor <= 1:
        yield f"memoryThrottlingFactor {factor:g} must be greater than 0 and less than or equal to 1.0"
    if policy not in MEMORY_RESERVATIONS:
        none, tiered = map(_quoted, MEMORY_RESERVATIONS)
        yield (
            f"option {_quoted(policy)} specified for memoryReservationPolicy. "
            f"Valid options are {none} or {tiered}"
        )
    elif policy != MEMORY_RESERVATIONS[0] and not config.gate("MemoryQoS", False):
        yield f"memoryReservationPolicy {_quoted(policy)} requires MemoryQoS feature gate to be enabled"
    swap = config.memory_swap.swap_behavior if config.memory_swap is not None else ""
    if swap not in SWAP_BEHAVIORS:
        nothing, limited, none = map(_quoted, SWAP_BEHAVIORS)
        yield f"memorySwap.swapBehavior {_quoted(swap)} must be one of: {nothing}, {limited} or {none}"


def _restarts(config: KubeletConfiguration) -> Iterator[str]:
    settings = config.crash_loop_back_off
    period = settings.max_container_restart_period if settings is not None else None
    least, most = RESTART_PERIODS
    if period is None:
        return
    if not config.gate("KubeletCrashLoopBackOffMax", True):
        yield (
            "FeatureGate KubeletCrashLoopBackOffMax not enabled, "
            "CrashLoopBackOff.MaxContainerRestartPeriod must not be set"
        )
    elif not least <= period <= most:
        yield (
            f"CrashLoopBackOff.MaxContainerRestartPeriod (got: {float(period):g} seconds) "
            "must be set between 1s and 300s"
        )


def _logs(config: KubeletConfiguration) -> Iterator[str]:
    # The runtime writes the logs: a path that is relative to the agent's directory leads it elsewhere.
    if not config.pod_logs_dir.startswith("/"):
        yield f"pod logs path {_quoted(config.pod_logs_dir)} must be absolute path"
    elif os.path.normpath(config.pod_logs_dir) != config.pod_logs_dir:
        yield f"pod logs path {_quoted(config.pod_logs_dir)} must be normalized"
    if not config.pod_logs_dir.isascii():
        yield f"pod logs path {_quoted(config.pod_logs_dir)} must contain ASCII characters only"
    if config.container_log_max_workers < 1:
        yield "containerLogMaxWorkers must be greater than or equal to 1"
    if config.enable_system_log_query and not config.enable_system_log_handler:
        yield "enableSystemLogHandler is required for enableSystemLogQuery"


def _logging(config: KubeletConfiguration) -> Iterator[str]:
    """Check the logging section as component-base's `logs/api/v1` `Validate` does; name the field."""
    settings = config.logging
    if not _is_positive(settings.flush_frequency):
        yield (
            f"logging.flushFrequency: Invalid value: {_quoted(settings.flush_frequency)}: "
            "Must be greater than zero"
        )
    if settings.format not in LOG_FORMATS:
        yield f"logging.format: Invalid value: {_quoted(settings.format)}: Unsupported log format"
    elif settings.format == "json" and not config.gate("LoggingBetaOptions", True):
        yield "logging.format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature"
    if settings.verbosity > MOST_VERBOSE:
        yield f"logging.verbosity: Invalid value: {settings.verbosity}: Must be <= {MOST_VERBOSE}"
    if settings.vmodule and settings.format != "text":
        yield "logging.vmodule: Forbidden: Only supported for text log format"
    for index, item in enumerate(settings.vmodule or []):
        field = f"logging.vmodule[{index}]"
        if not item.file_pattern:
            yield f"{field}: Required value: File pattern must not be empty"
        if "=" in item.file_pattern or "," in item.file_pattern:
            text = "File pattern must not contain equal sign or comma"
            yield f"{field}: Invalid value: {_quoted(item.file_pattern)}: {text}"
        if item.verbosity > MOST_VERBOSE:
            yield f"{field}: Invalid value: {item.verbosity}: Must be <= {MOST_VERBOSE}"
    if config.gate("LoggingAlphaOptions", False):
        return
    for name, options in (("text", settings.options.text), ("json", settings.options.json)):
        if options.split_stream:
            yield f"logging.options.{name}.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled"
        if options.info_buffer_size.nano:
            yield f"logging.options.{name}.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled"


def _tracing(config: KubeletConfiguration) -> Iterator[str]:
    if config.tracing is None:
        return
    rate, endpoint = config.tracing.sampling_rate_per_million, config.tracing.endpoint
    field = "tracing.samplingRatePerMillion: Invalid value"
    if rate is not None and rate < 0:
        yield f"{field}: {rate}: sampling rate must be positive"
    if rate is not None and rate > MOST_SAMPLES:
        yield f"{field}: {rate}: sampling rate per million must be less than or equal to one million"
    if endpoint is None:
        return
    scheme = endpoint.partition("://")[0] if "//" in endpoint else "dns"
    if scheme not in ("dns", "unix", "unix-abstract"):
        yield (
            f"tracing.endpoint: Invalid value: {_quoted(endpoint)}: unsupported scheme: {scheme}. "
            "Options are none, dns, unix, or unix-abstract"
        )


def _is_positive(period: str | int) -> bool:
    try:
        return (Duration.parse(period) if isinstance(period, str) else period) > 0
    except InvalidInput:
        return False


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values)


def _quoted(value: str | int) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cpu_period(config: KubeletConfiguration) -> Iterator[str]:
    period = config.cpu_cfs_quota_period
    least, most = CPU_PERIODS
    if config.gate("CustomCPUCFSQuotaPeriod", True):
        if not least <= period <= most:
            yield (
                f"cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {period} must be between 1ms and 1sec, inclusive"
            )
    elif period != DEFAULT_CPU_PERIOD:
        yield (
            f"cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {period} "
            "requires feature gate CustomCPUCFSQuotaPeriod"
        )


def _shutdown(config: KubeletConfiguration) -> Iterator[str]:
    whole, critical = config.shutdown_grace_period, config.shutdown_grace_period_critical_pods
    periods = {"shutdownGracePeriod": whole, "shutdownGracePeriodCriticalPods": critical}
    if not config.gate("GracefulNodeShutdown", True):
        if whole > 0 or critical > 0:
            yield (
                "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods "
                "requires feature gate GracefulNodeShutdown"
            )
    else:
        # The period of critical pods is a part of the whole one, and counts at its end (KEP-2000).
        if critical > whole:
            yield f"shutdownGracePeriodCriticalPods {critical} must be <= shutdownGracePeriod {whole}"
        for field, period in periods.items():
            if period < 0 or 0 < period < SHORTEST_SHUTDOWN:
                yield f"{field} {period} must be either zero or otherwise >= 1 sec"
    if not config.shutdown_grace_period_by_pod_priority:
        return
    if not config.gate("GracefulNodeShutdownBasedOnPodPriority", True):
        yield (
            "Specifying shutdownGracePeriodByPodPriority requires feature gate "
            "GracefulNodeShutdownBasedOnPodPriority"
        )
    elif whole > 0 or critical > 0:
        yield "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time"
