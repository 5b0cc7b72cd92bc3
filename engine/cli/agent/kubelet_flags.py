"""Map the kubelet's command-line flags (v1.36) to fields of its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from engine.api.encoding.go_bool import FALSE, TRUE
from engine.api.errors import InvalidInput
from engine.api.quantity import decimal

Read = Callable[[str], Any]


def _flag(text: str) -> bool:
    if text not in TRUE | FALSE:
        raise ValueError(f"expected true or false, got {text[:64]!r}")
    return text in TRUE


def _int32(text: str) -> int:
    return _integer(text, 32)


def _int64(text: str) -> int:
    return _integer(text, 64)


def _integer(text: str, bits: int) -> int:
    """Parse a signed integer of so many bits as Go's flags do: decimal, or after 0x, 0o, 0 or 0b."""
    digits = text.removeprefix("-").removeprefix("+")
    # Go takes `010` for octal; Python refuses it, because it was octal in Python 2.
    base = 8 if digits[:1] == "0" and digits[1:2].isdigit() else 0
    limit = 1 << bits - 1
    # `int` also takes blanks around a number and digits of other scripts, and refuses thousands of digits.
    if digits[:1].isdigit() and digits.isascii() and len(digits) <= bits + 2 and digits == digits.strip():
        with suppress(ValueError):
            number = int(text, base)
            if -limit <= number < limit:
                return number
    raise ValueError(f"expected a whole number of {bits} bits, got {text[:64]!r}")


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def pairs(text: str, sign: str = "=") -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in _list(text):
        name, found, value = part.partition(sign)
        if not found or not name.strip():
            raise ValueError(f"expected NAME{sign}VALUE, got {part!r}")
        pairs[name.strip()] = value.strip()
    return pairs


def read_labels(texts: Iterable[str]) -> dict[str, str]:
    """Parse the values of `--node-labels`, each `NAME=VALUE,…`; a name alone has an empty value."""
    parts = (part.partition("=") for text in texts for part in _list(text))
    return {name.strip(): value.strip() for name, _, value in parts}


def _thresholds(text: str) -> dict[str, str]:
    return pairs(text, "<")


def _gates(text: str) -> dict[str, bool]:
    return {name: _flag(value) for name, value in pairs(text).items()}


def _taints(text: str) -> list[dict[str, str]]:
    """Parse `KEY=VALUE:EFFECT` and `KEY:EFFECT`."""
    taints = []
    for part in _list(text):
        named, found, effect = part.rpartition(":")
        key, _, value = named.partition("=")
        if not found or not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise ValueError(f"expected KEY[=VALUE]:EFFECT, got {part!r}")
        taints.append({"key": key, "value": value, "effect": effect})
    return taints


def _reserved_memory(text: str) -> list[dict[str, Any]]:
    """Parse `0:memory=1Gi,hugepages-1M=2Gi;1:memory=2Gi`: the memory reserved on each NUMA node."""
    kept = []
    for part in filter(None, text.split(";")):
        node, found, limits = part.partition(":")
        number = decimal(node.strip())
        if not found or number is None:
            raise ValueError(f"expected NUMA-NODE:TYPE=AMOUNT,…, got {part!r}")
        kept.append({"numaNode": number, "limits": pairs(limits)})
    return kept


def _headers(text: str) -> dict[str, list[str]]:
    """Parse `NAME:VALUE,NAME:VALUE`; a name may come more than once, and keeps all of its values."""
    headers: dict[str, list[str]] = {}
    for part in _list(text):
        for name, value in pairs(part, ":").items():
            headers.setdefault(name, []).append(value)
    return headers


_TEXT: Final[Mapping[str, str]] = {
    "address": "address",
    "authentication-token-webhook-cache-ttl": "authentication.webhook.cacheTTL",
    "authorization-mode": "authorization.mode",
    "authorization-webhook-cache-authorized-ttl": "authorization.webhook.cacheAuthorizedTTL",
    "authorization-webhook-cache-unauthorized-ttl": "authorization.webhook.cacheUnauthorizedTTL",
    "cgroup-driver": "cgroupDriver",
    "cgroup-root": "cgroupRoot",
    "client-ca-file": "authentication.x509.clientCAFile",
    "cluster-domain": "clusterDomain",
    "container-log-max-size": "containerLogMaxSize",
    "container-runtime-endpoint": "containerRuntimeEndpoint",
    "cpu-cfs-quota-period": "cpuCFSQuotaPeriod",
    "cpu-manager-policy": "cpuManagerPolicy",
    "cpu-manager-reconcile-period": "cpuManagerReconcilePeriod",
    "eviction-pressure-transition-period": "evictionPressureTransitionPeriod",
    "file-check-frequency": "fileCheckFrequency",
    "hairpin-mode": "hairpinMode",
    "healthz-bind-address": "healthzBindAddress",
    "http-check-frequency": "httpCheckFrequency",
    "image-service-endpoint": "imageServiceEndpoint",
    "kube-api-content-type": "contentType",
    "kube-reserved-cgroup": "kubeReservedCgroup",
    "kubelet-cgroups": "kubeletCgroups",
    "log-flush-frequency": "logging.flushFrequency",
    "log-json-info-buffer-size": "logging.options.json.infoBufferSize",
    "log-text-info-buffer-size": "logging.options.text.infoBufferSize",
    "logging-format": "logging.format",
    "manifest-url": "staticPodURL",
    "memory-manager-policy": "memoryManagerPolicy",
    "minimum-image-ttl-duration": "imageMinimumGCAge",
    "node-status-update-frequency": "nodeStatusUpdateFrequency",
    "pod-cidr": "podCIDR",
    "pod-manifest-path": "staticPodPath",
    "provider-id": "providerID",
    "reserved-cpus": "reservedSystemCPUs",
    "resolv-conf": "resolvConf",
    "runtime-request-timeout": "runtimeRequestTimeout",
    "streaming-connection-idle-timeout": "streamingConnectionIdleTimeout",
    "sync-frequency": "syncFrequency",
    "system-cgroups": "systemCgroups",
    "system-reserved-cgroup": "systemReservedCgroup",
    "tls-cert-file": "tlsCertFile",
    "tls-min-version": "tlsMinVersion",
    "tls-private-key-file": "tlsPrivateKeyFile",
    "topology-manager-policy": "topologyManagerPolicy",
    "topology-manager-scope": "topologyManagerScope",
    "volume-plugin-dir": "volumePluginDir",
    "volume-stats-agg-period": "volumeStatsAggPeriod",
}
_INT64: Final[Mapping[str, str]] = {
    "max-open-files": "maxOpenFiles",
    "pod-max-pids": "podPidsLimit",
}
_INT32: Final[Mapping[str, str]] = {
    "container-log-max-files": "containerLogMaxFiles",
    "event-burst": "eventBurst",
    "event-qps": "eventRecordQPS",
    "eviction-max-pod-grace-period": "evictionMaxPodGracePeriod",
    "healthz-port": "healthzPort",
    "image-gc-high-threshold": "imageGCHighThresholdPercent",
    "image-gc-low-threshold": "imageGCLowThresholdPercent",
    "kube-api-burst": "kubeAPIBurst",
    "kube-api-qps": "kubeAPIQPS",
    "max-pods": "maxPods",
    "node-status-max-images": "nodeStatusMaxImages",
    "oom-score-adj": "oomScoreAdj",
    "pods-per-core": "podsPerCore",
    "port": "port",
    "read-only-port": "readOnlyPort",
    "registry-burst": "registryBurst",
    "registry-qps": "registryPullQPS",
    "v": "logging.verbosity",
}
_FLAGS: Final[Mapping[str, str]] = {
    "anonymous-auth": "authentication.anonymous.enabled",
    "authentication-token-webhook": "authentication.webhook.enabled",
    "cgroups-per-qos": "cgroupsPerQOS",
    "contention-profiling": "enableContentionProfiling",
    "cpu-cfs-quota": "cpuCFSQuota",
    "enable-controller-attach-detach": "enableControllerAttachDetach",
    "enable-debugging-handlers": "enableDebuggingHandlers",
    "enable-server": "enableServer",
    "fail-cgroupv1": "failCgroupV1",
    "fail-swap-on": "failSwapOn",
    "kernel-memcg-notification": "kernelMemcgNotification",
    "log-json-split-stream": "logging.options.json.splitStream",
    "log-text-split-stream": "logging.options.text.splitStream",
    "local-storage-capacity-isolation": "localStorageCapacityIsolation",
    "make-iptables-util-chains": "makeIPTablesUtilChains",
    "protect-kernel-defaults": "protectKernelDefaults",
    "register-node": "registerNode",
    "rotate-certificates": "rotateCertificates",
    "rotate-server-certificates": "serverTLSBootstrap",
    "runonce": "runOnce",
    "seccomp-default": "seccompDefault",
    "serialize-image-pulls": "serializeImagePulls",
}
_OTHERS: Final[Mapping[str, tuple[str, Read]]] = {
    "allowed-unsafe-sysctls": ("allowedUnsafeSysctls", _list),
    "cluster-dns": ("clusterDNS", _list),
    "cpu-manager-policy-options": ("cpuManagerPolicyOptions", pairs),
    "enforce-node-allocatable": ("enforceNodeAllocatable", _list),
    "eviction-hard": ("evictionHard", _thresholds),
    "eviction-minimum-reclaim": ("evictionMinimumReclaim", pairs),
    "eviction-soft": ("evictionSoft", _thresholds),
    "eviction-soft-grace-period": ("evictionSoftGracePeriod", pairs),
    "feature-gates": ("featureGates", _gates),
    "kube-reserved": ("kubeReserved", pairs),
    "manifest-url-header": ("staticPodURLHeader", _headers),
    "qos-reserved": ("qosReserved", pairs),
    "register-with-taints": ("registerWithTaints", _taints),
    "reserved-memory": ("reservedMemory", _reserved_memory),
    "system-reserved": ("systemReserved", pairs),
    "tls-cipher-suites": ("tlsCipherSuites", _list),
    "topology-manager-policy-options": ("topologyManagerPolicyOptions", pairs),
}
FIELDS: Final[Mapping[str, tuple[str, Read]]] = {
    **{flag: (field, str) for flag, field in _TEXT.items()},
    **{flag: (field, _int32) for flag, field in _INT32.items()},
    **{flag: (field, _int64) for flag, field in _INT64.items()},
    **{flag: (field, _flag) for flag, field in _FLAGS.items()},
    **_OTHERS,
}
SWITCHES: Final = frozenset(_FLAGS)
"""Flags that need no value."""
JOINED: Final[Mapping[str, str]] = {
    **dict.fromkeys(_OTHERS.keys() - {"register-with-taints"}, ","),
    "reserved-memory": ";",
}
"""Flags whose values add up if a command line repeats them, and what stands between two values. Of every
other flag the last value counts, for the kubelet also of `--register-with-taints`, which is a list.
"""
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "application-metrics-count-limit": "limits the metrics that cAdvisor takes from containers",
    "boot-id-file": "sets where cAdvisor reads the boot id",
    "container-hints": "describes containers to cAdvisor in a file",
    "containerd": "sets where cAdvisor finds containerd",
    "containerd-namespace": "sets the containerd namespace that cAdvisor reads",
    "enable-load-reader": "makes cAdvisor read the CPU load",
    "event-storage-age-limit": "sets how long cAdvisor keeps events",
    "event-storage-event-limit": "sets how many events cAdvisor keeps",
    "global-housekeeping-interval": "sets how often cAdvisor looks for new containers",
    "housekeeping-interval": "sets how often cAdvisor measures a container",
    "log-cadvisor-usage": "makes cAdvisor log its own usage",
    "machine-id-file": "sets where cAdvisor reads the machine id",
    "max-housekeeping-interval": "sets the longest interval at which cAdvisor measures a container",
    "storage-driver-buffer-duration": "makes cAdvisor keep statistics before it sends them to a database",
    "storage-driver-db": "names the database of cAdvisor's statistics",
    "storage-driver-host": "names the host of cAdvisor's database",
    "storage-driver-password": "is the password of cAdvisor's database",
    "storage-driver-secure": "makes cAdvisor use TLS with its database",
    "storage-driver-table": "names the table of cAdvisor's statistics",
    "storage-driver-user": "is the user of cAdvisor's database",
    "experimental-allocatable-ignore-eviction": "leaves eviction thresholds out of allocatable",
    "experimental-mounter-path": "mounts with a separate program",
    "maximum-dead-containers": "limits the number of dead containers on the node",
    "maximum-dead-containers-per-container": "limits the number of dead instances of a container",
    "minimum-container-ttl-duration": "sets how long dead containers are kept",
    "vmodule": "chooses the log's level by source file",
    "pod-infra-container-image": "keeps the pause image from image garbage collection",
}
"""Kubelet flags that have no effect here, with what each does in the kubelet."""
NOT_NEEDED: Final[Mapping[str, str]] = {
    "runtime-cgroups": "the runtime's cgroup is that of the process that listens on its socket",
}
"""Kubelet flags that tell the kubelet facts which the agent finds by itself, with how it finds them."""


_ZERO_IS_ZERO = ("eviction-pressure-transition-period", "max-pods", "minimum-image-ttl-duration")
"""Flags whose zero is meant: a file's zero is replaced by the default, before the flags are applied."""


def zeros(flags: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of `flags`, as plain data of a KubeletConfiguration, of which a zero stays a zero."""
    document: dict[str, Any] = {}
    apply_flags(document, {flag: text for flag, text in flags.items() if flag in _ZERO_IS_ZERO})
    return document


def apply_flags(document: dict[str, Any], flags: Mapping[str, str]) -> None:
    """Apply `flags` to a KubeletConfiguration (plain data).

    Maps are merged key by key, as the kubelet does with feature gates; everything else is replaced. Raise
    InvalidInput naming the flag.
    """
    for flag, text in flags.items():
        field, read = FIELDS[flag]
        try:
            value = read(text)
        except ValueError as error:
            raise InvalidInput(str(error), subject=f"--{flag}") from None
        *outer, last = field.split(".")
        section = document
        for name in outer:
            section = section.setdefault(name, {})
        section[last] = {**(section.get(last) or {}), **value} if flag == "feature-gates" else value
