"""KubeletConfiguration (`kubelet.config.k8s.io/v1beta1`): the kubelet's field names and defaults.

Every field of the kubelet's type is known, so that a node's existing file loads unchanged; what a
field means here is described in `docs/configuration.md`. Differences in defaults are in
`docs/differences.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from engine.api.duration import Duration
from engine.api.node import Taint
from engine.api.quantity import Quantity
from engine.api.struct import Struct, Uint32, decode_hook

GROUP_VERSION = "kubelet.config.k8s.io/v1beta1"
ROOT_DIR = "/var/lib/kubelet"
EXCLUSIVE_CPUS_GATE = "InPlacePodVerticalScalingExclusiveCPUs"
EXCLUSIVE_MEMORY_GATE = "InPlacePodVerticalScalingExclusiveMemory"
POD_LEVEL_MANAGERS_GATE = "PodLevelResourceManagers"
"""Gates (alpha in v1.36) of in-place resizes of pods whose CPUs or memory are pinned."""


class CrashLoopBackOffConfig(Struct):
    max_container_restart_period: Duration | None = None


class MemorySwapConfig(Struct):
    swap_behavior: str = ""


class MemoryReservation(Struct):
    numa_node: int = 0
    limits: dict[str, Quantity] | None = None


class ShutdownGracePeriodByPodPriority(Struct):
    priority: int = 0
    shutdown_grace_period_seconds: int = 0


class UserNamespaces(Struct):
    ids_per_pod: int | None = None


class X509Authentication(Struct):
    client_ca_file: str = msgspec.field(default="", name="clientCAFile")


class WebhookAuthentication(Struct):
    enabled: bool = True
    cache_ttl: Duration = msgspec.field(default=Duration(120), name="cacheTTL")


class AnonymousAuthentication(Struct):
    enabled: bool = False


class KubeletAuthentication(Struct):
    x509: X509Authentication = msgspec.field(default_factory=X509Authentication)
    webhook: WebhookAuthentication = msgspec.field(default_factory=WebhookAuthentication)
    anonymous: AnonymousAuthentication = msgspec.field(default_factory=AnonymousAuthentication)

    def __post_init__(self) -> None:
        zero_is_default(self.webhook, ("cache_ttl",))


class WebhookAuthorization(Struct):
    cache_authorized_ttl: Duration = msgspec.field(default=Duration(300), name="cacheAuthorizedTTL")
    cache_unauthorized_ttl: Duration = msgspec.field(default=Duration(30), name="cacheUnauthorizedTTL")


class KubeletAuthorization(Struct):
    mode: str = "Webhook"
    webhook: WebhookAuthorization = msgspec.field(default_factory=WebhookAuthorization)

    def __post_init__(self) -> None:
        zero_is_default(self, ("mode",))
        zero_is_default(self.webhook, ("cache_authorized_ttl", "cache_unauthorized_ttl"))


class OutputRoutingOptions(Struct):
    split_stream: bool = False
    info_buffer_size: Quantity = Quantity.parse("0")


class FormatOptions(Struct):
    text: OutputRoutingOptions = msgspec.field(default_factory=OutputRoutingOptions)
    json: OutputRoutingOptions = msgspec.field(default_factory=OutputRoutingOptions)


class VModuleItem(Struct):
    file_pattern: str = ""
    verbosity: Uint32 = 0


DEBUG_VERBOSITY: Final = 4
"""The lowest verbosity of a kubelet at which debug messages are written."""


class TracingConfiguration(Struct):
    """Configure where spans are sent, and how many of a million traces (component-base/tracing v1)."""

    endpoint: str | None = None
    sampling_rate_per_million: int | None = None


class LoggingConfiguration(Struct):
    """Configure the agent's log (component-base/logs v1). A `flushFrequency` that is a number counts
    nanoseconds.
    """

    format: str = "text"
    flush_frequency: str | int = "5s"
    verbosity: Uint32 = 0
    vmodule: list[VModuleItem] | None = None
    options: FormatOptions = msgspec.field(default_factory=FormatOptions)

    def __post_init__(self) -> None:
        zero_is_default(self, ("format", "flush_frequency"))


def zero_is_default(owner: Struct, names: Iterable[str]) -> None:
    """Replace zero or empty fields by their default, as the kubelet does where it cannot tell a written zero
    from a missing field.
    """
    for name in names:
        if not getattr(owner, name):
            setattr(owner, name, _defaults(type(owner))[name])


def keep_zeros(owner: Struct, document: Mapping[str, Any]) -> None:
    """Set the fields that are zero or empty in `document`, plain data that `owner` was decoded from.

    For sources that are read after the kubelet has set its defaults: flags, and what `/configz` shows.
    """
    if not document:
        return
    for field in msgspec.structs.fields(type(owner)):
        value, current = document.get(field.encode_name), getattr(owner, field.name)
        if isinstance(value, dict) and isinstance(current, Struct):
            keep_zeros(current, value)
        elif value is not None and current:
            decoded = msgspec.convert(value, field.type, dec_hook=decode_hook)
            if not decoded:
                setattr(owner, field.name, decoded)


@cache
def _defaults(kind: type[Struct]) -> dict[str, Any]:
    return {field.name: field.default for field in msgspec.structs.fields(kind)}


_ZERO_IS_DEFAULT = (
    "pod_logs_dir", "sync_frequency", "file_check_frequency", "http_check_frequency", "address", "port",
    "registry_burst", "event_burst", "healthz_bind_address", "streaming_connection_idle_timeout",
    "node_lease_duration_seconds", "image_minimum_gc_age",
    "volume_stats_agg_period", "cgroup_driver", "cpu_manager_policy", "cpu_manager_reconcile_period",
    "memory_manager_policy", "topology_manager_policy", "topology_manager_scope", "runtime_request_timeout",
    "hairpin_mode", "max_pods", "max_open_files", "content_type", "kube_api_burst",
    "eviction_pressure_transition_period", "container_log_max_size",
    "config_map_and_secret_change_detection_strategy", "volume_plugin_dir", "memory_reservation_policy",
)  # fmt: skip


class KubeletConfiguration(Struct):
    """Hold the agent's configuration; durations are seconds as `Duration`.

    A zero means the default where it does for the kubelet (v1.36 `SetDefaults_KubeletConfiguration`);
    `readOnlyPort: 0` and `healthzPort: 0` are closed ports.
    """

    api_version: str = GROUP_VERSION
    kind: str = "KubeletConfiguration"

    enable_server: bool = True
    static_pod_path: str = ""
    pod_logs_dir: str = "/var/log/pods"
    sync_frequency: Duration = Duration(60)
    file_check_frequency: Duration = Duration(20)
    http_check_frequency: Duration = Duration(20)
    static_pod_url: str = ""
    static_pod_url_header: dict[str, list[str]] | None = None
    address: str = "0.0.0.0"
    port: int = 10250
    read_only_port: int = 10255
    tls_cert_file: str = ""
    tls_private_key_file: str = ""
    tls_cipher_suites: list[str] | None = None
    tls_curve_preferences: list[int] | None = None
    tls_min_version: str = ""
    rotate_certificates: bool = False
    server_tls_bootstrap: bool = False
    authentication: KubeletAuthentication = msgspec.field(default_factory=KubeletAuthentication)
    authorization: KubeletAuthorization = msgspec.field(default_factory=KubeletAuthorization)
    registry_pull_qps: int = 5
    registry_burst: int = 10
    image_pull_credentials_verification_policy: str = ""
    preloaded_images_verification_allowlist: list[str] | None = None
    event_record_qps: int = 50
    event_burst: int = 100
    enable_debugging_handlers: bool = True
    enable_contention_profiling: bool = False
    healthz_port: int = 10248
    healthz_bind_address: str = "127.0.0.1"
    oom_score_adj: int = -999
    cluster_domain: str = ""
    cluster_dns: list[str] | None = None
    streaming_connection_idle_timeout: Duration = Duration(4 * 3600)
    node_status_update_frequency: Duration = Duration(0)
    node_status_report_frequency: Duration = Duration(0)
    node_lease_duration_seconds: int = 40
    image_minimum_gc_age: Duration = Duration(120)
    image_maximum_gc_age: Duration = Duration(0)
    image_gc_high_threshold_percent: int = 85
    image_gc_low_threshold_percent: int = 80
    volume_stats_agg_period: Duration = Duration(60)
    kubelet_cgroups: str = ""
    system_cgroups: str = ""
    cgroup_root: str = ""
    cgroups_per_qos: bool = True
    cgroup_driver: str = "cgroupfs"
    cpu_manager_policy: str = "none"
    single_process_oom_kill: bool | None = None
    cpu_manager_policy_options: dict[str, str] | None = None
    cpu_manager_reconcile_period: Duration = Duration(10)
    memory_manager_policy: str = "None"
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: dict[str, str] | None = None
    qos_reserved: dict[str, str] | None = None
    runtime_request_timeout: Duration = Duration(120)
    hairpin_mode: str = "promiscuous-bridge"
    max_pods: int = 110
    pod_cidr: str = ""
    pod_pids_limit: int = -1
    resolv_conf: str = "/etc/resolv.conf"
    run_once: bool = False
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period: Duration = Duration(0.1)
    node_status_max_images: int = 50
    max_open_files: int = 1_000_000
    content_type: str = "application/vnd.kubernetes.protobuf"
    kube_api_qps: int = 50
    kube_api_burst: int = 100
    serialize_image_pulls: bool | None = None
    max_parallel_image_pulls: int | None = None
    eviction_hard: dict[str, str] | None = None
    eviction_soft: dict[str, str] | None = None
    eviction_soft_grace_period: dict[str, str] | None = None
    eviction_pressure_transition_period: Duration = Duration(300)
    eviction_max_pod_grace_period: int = 0
    eviction_minimum_reclaim: dict[str, str] | None = None
    merge_default_eviction_settings: bool = False
    pods_per_core: int = 0
    enable_controller_attach_detach: bool = True
    protect_kernel_defaults: bool = False
    make_ip_tables_util_chains: bool = msgspec.field(default=True, name="makeIPTablesUtilChains")
    iptables_masquerade_bit: int = 14
    iptables_drop_bit: int = 15
    feature_gates: dict[str, bool] | None = None
    fail_swap_on: bool = True
    memory_swap: MemorySwapConfig | None = None
    container_log_max_size: str = "10Mi"
    container_log_max_files: int = 5
    container_log_max_workers: int = 1
    container_log_monitor_interval: Duration = Duration(10)
    config_map_and_secret_change_detection_strategy: str = "Watch"  # noqa: S105
    system_reserved: dict[str, str] | None = None
    kube_reserved: dict[str, str] | None = None
    reserved_system_cpus: str = ""
    show_hidden_metrics_for_version: str = ""
    system_reserved_cgroup: str = ""
    kube_reserved_cgroup: str = ""
    enforce_node_allocatable: list[str] = msgspec.field(default_factory=lambda: ["pods"])
    allowed_unsafe_sysctls: list[str] | None = None
    volume_plugin_dir: str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"
    provider_id: str = ""
    kernel_memcg_notification: bool = False
    logging: LoggingConfiguration = msgspec.field(default_factory=LoggingConfiguration)
    enable_system_log_handler: bool = True
    enable_system_log_query: bool = False
    shutdown_grace_period: Duration = Duration(0)
    shutdown_grace_period_critical_pods: Duration = Duration(0)
    shutdown_grace_period_by_pod_priority: list[ShutdownGracePeriodByPodPriority] | None = None
    crash_loop_back_off: CrashLoopBackOffConfig | None = None
    reserved_memory: list[MemoryReservation] | None = None
    enable_profiling_handler: bool = True
    enable_debug_flags_handler: bool = True
    seccomp_default: bool = False
    memory_throttling_factor: float = 0.9
    memory_reservation_policy: str = "None"
    register_with_taints: list[Taint] | None = None
    register_node: bool = True
    tracing: TracingConfiguration | None = None
    local_storage_capacity_isolation: bool = True
    container_runtime_endpoint: str = ""
    image_service_endpoint: str = ""
    fail_cgroup_v1: bool = False
    user_namespaces: UserNamespaces | None = None

    def __post_init__(self) -> None:
        # The report follows a given update, but is rarer than the update's default: a kubelet reports an
        # unchanged status every five minutes, since its lease shows that it lives (KEP-589).
        update, report = self.node_status_update_frequency, self.node_status_report_frequency
        self.node_status_update_frequency = update or Duration(10)
        self.node_status_report_frequency = report or update or Duration(300)
        zero_is_default(self, _ZERO_IS_DEFAULT)
        # Any negative number means no limit, as for the kubelet.
        self.pod_pids_limit = max(self.pod_pids_limit, -1)
        if self.serialize_image_pulls is None:
            self.serialize_image_pulls = (self.max_parallel_image_pulls or 1) < 2

    def gate(self, name: str, default: bool) -> bool:
        """Return a feature gate's setting, or `default` if the file does not name it."""
        return (self.feature_gates or {}).get(name, default)
