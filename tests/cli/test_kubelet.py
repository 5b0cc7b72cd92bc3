"""`kubengine kubelet` reads flags, a file and drop-ins as the kubelet does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.api.config import KubeletConfiguration
from engine.api.documents import convert
from engine.api.errors import InvalidInput
from engine.cli.agent.kubelet_config import load_kubelet_config
from engine.cli.agent.kubelet_flags import (
    FIELDS,
    NOT_NEEDED,
    SWITCHES,
    WITHOUT_EFFECT,
    apply_flags,
    read_labels,
)
from engine.cli.kubelet import command, config_flags

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


def test_drop_ins_lie_on_the_file_and_flags_on_both(tmp_path: Path):
    file = tmp_path / "kubelet.yaml"
    file.write_text(
        HEAD + "maxPods: 10\npodsPerCore: 3\nauthentication: {anonymous: {enabled: true}}\n"
        "evictionHard: {memory.available: 1Mi, nodefs.available: 1%}\nclusterDNS: [10.0.0.1, 10.0.0.2]\n"
        "featureGates: {A: true, B: true}\n"
    )
    drop_ins = tmp_path / "conf.d"
    drop_ins.mkdir()
    (drop_ins / "20-b.conf").write_text(HEAD + "maxPods: 30\nevictionHard: {memory.available: 3Mi}\n")
    (drop_ins / "10-a.conf").write_text(HEAD + "maxPods: 20\nclusterDNS: [10.0.0.9]\n")
    (drop_ins / "30-c.yaml").write_text("nonsense")
    flags = {"max-pods": "40", "feature-gates": "B=false,C=true", "client-ca-file": "/ca"}
    config = load_kubelet_config(file, drop_ins, flags)
    assert (config.max_pods, config.pods_per_core) == (40, 3)
    assert config.eviction_hard == {"memory.available": "3Mi", "nodefs.available": "1%"}
    assert config.cluster_dns == ["10.0.0.9"]
    assert config.feature_gates == {"A": True, "B": False, "C": True}
    assert config.authentication.anonymous.enabled
    assert config.authentication.x509.client_ca_file == "/ca"
    assert load_kubelet_config(file, drop_ins, {}).max_pods == 30


def test_relative_paths_start_at_the_directory_of_the_file(tmp_path: Path):
    file = tmp_path / "kubelet.yaml"
    file.write_text(
        HEAD + "staticPodPath: manifests\nresolvConf: ''\ntlsCertFile: /etc/a.crt\npodLogsDir: ../logs\n"
        "authentication: {x509: {clientCAFile: pki/ca.crt}}\n"
    )
    drop_ins = tmp_path / "conf.d"
    drop_ins.mkdir()
    (drop_ins / "1.conf").write_text(HEAD + "tlsPrivateKeyFile: a.key\n")
    config = load_kubelet_config(file, drop_ins, {"volume-plugin-dir": "plugins"})
    assert config.static_pod_path == str(tmp_path / "manifests")
    assert config.authentication.x509.client_ca_file == str(tmp_path / "pki/ca.crt")
    assert config.pod_logs_dir == str(tmp_path.parent / "logs")
    assert (config.resolv_conf, config.tls_cert_file) == ("", "/etc/a.crt")
    assert (config.tls_private_key_file, config.volume_plugin_dir) == ("a.key", "plugins")


@pytest.mark.parametrize(
    ("text", "named"),
    [("kind: Pod\n", "KubeletConfiguration"), ("", "nothing"), (HEAD + "maxPods: many\n", "maxPods")],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, named: str):
    bad = tmp_path / "10.conf"
    bad.write_text(text)
    with pytest.raises(InvalidInput, match=named) as error:
        load_kubelet_config(None, tmp_path, {})
    assert str(tmp_path) in str(error.value)


SAMPLES = {
    "register-with-taints": "a=b:NoSchedule,c:NoExecute",
    "reserved-memory": "0:memory=1Gi;1:memory=2Gi",
    "manifest-url-header": "a:b",
    "eviction-hard": "memory.available<1Gi",
    "eviction-soft": "memory.available<1Gi",
    "feature-gates": "A=true",
}


@pytest.mark.parametrize("flag", sorted(FIELDS))
def test_every_flag_sets_its_field(flag: str):
    field, read = FIELDS[flag]
    text = SAMPLES.get(flag)
    if text is None:
        timed = any(word in flag for word in ("frequency", "ttl", "timeout", "period", "duration"))
        text = "true" if flag in SWITCHES else "7"
        text = "a=1" if read.__name__ == "pairs" else "7s" if timed and read is str else text
    other = {flag: "false"} if flag in SWITCHES else {}
    assert _with_flags({flag: text}) != _with_flags(other), field


def _with_flags(flags: dict[str, str]) -> KubeletConfiguration:
    document: dict[str, Any] = {}
    apply_flags(document, flags)
    return convert(document, KubeletConfiguration, "flags")


def test_taints_and_memory_are_read_as_the_kubelet_writes_them():
    flags = {flag: SAMPLES[flag] for flag in ("register-with-taints", "reserved-memory")}
    config = load_kubelet_config(None, None, flags)
    taints = [(taint.key, taint.value, taint.effect) for taint in config.register_with_taints or ()]
    assert taints == [("a", "b", "NoSchedule"), ("c", "", "NoExecute")]
    assert [
        (each.numa_node, str((each.limits or {})["memory"])) for each in config.reserved_memory or ()
    ] == [
        (0, "1Gi"),
        (1, "2Gi"),
    ]


@pytest.mark.parametrize(
    ("flag", "text"),
    [("max-pods", "x"), ("fail-swap-on", "tRue"), ("feature-gates", "A"), ("register-with-taints", "a=b")],
)
def test_a_bad_value_names_its_flag(flag: str, text: str):
    with pytest.raises(InvalidInput, match=f"--{flag}"):
        load_kubelet_config(None, None, {flag: text})


def test_repeated_lists_and_maps_add_up_as_for_the_kubelet():
    line = (
        "--feature-gates=A=true --feature-gates B=false --cluster-dns=10.0.0.1 --cluster-dns=10.0.0.2 "
        "--reserved-memory 0:memory=1Gi,hugepages-1Gi=2Gi --reserved-memory 1:memory=2Gi "
        "--manifest-url-header=a:hello,b:again --manifest-url-header=b:beautiful "
        "--kube-reserved=cpu=1 --kube-reserved=memory=1Gi --max-pods=5 --max-pods=6 "
        "--register-with-taints=a=b:NoSchedule --register-with-taints=c:NoExecute"
    )
    config = load_kubelet_config(None, None, config_flags(line.split()))
    assert config.feature_gates == {"A": True, "B": False}
    assert config.cluster_dns == ["10.0.0.1", "10.0.0.2"]
    assert [each.numa_node for each in config.reserved_memory or ()] == [0, 1]
    assert config.static_pod_url_header == {"a": ["hello"], "b": ["again", "beautiful"]}
    assert config.kube_reserved == {"cpu": "1", "memory": "1Gi"}
    assert config.max_pods == 6
    assert [taint.key for taint in config.register_with_taints or ()] == ["c"]


def test_repeated_node_labels_add_up_and_need_no_value():
    assert read_labels(("a=b,c", "d=e=f", "a=z")) == {"a": "z", "c": "", "d": "e=f"}


@pytest.mark.parametrize(("text", "number"), [("7", 7), ("0x10", 16), ("010", 8), ("1_000", 1000), ("+3", 3)])
def test_numbers_are_those_of_the_kubelets_flags(text: str, number: int):
    assert load_kubelet_config(None, None, {"max-pods": text}).max_pods == number


@pytest.mark.parametrize("text", ["", "x", "08", " 7", "٣", "1.5", "2147483648", "-", "9" * 5000])
def test_other_numbers_are_refused_with_what_was_expected(text: str):
    with pytest.raises(InvalidInput, match="--max-pods: expected a whole number of 32 bits, got"):
        load_kubelet_config(None, None, {"max-pods": text})
    assert load_kubelet_config(None, None, {"max-open-files": "2147483648"}).max_open_files == 1 << 31


def test_flags_are_split_as_the_kubelet_splits_them(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    line = (
        "--max-pods=5 --max-pods 7 --fail-swap-on=false --seccomp-default --cgroup-root /x "
        "--vmodule /y --boot-id-file=/z --no-such-flag=1 stray"
    )
    assert config_flags(line.split()) == {
        "max-pods": "7",
        "fail-swap-on": "false",
        "seccomp-default": "true",
        "cgroup-root": "/x",
    }
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert WITHOUT_EFFECT["vmodule"] in said[0]
    assert "no-such-flag" in said[2]


@pytest.mark.parametrize(
    "line", ["--runtime-cgroups=/system.slice/containerd.service", "--runtime_cgroups /x"]
)
def test_the_cgroup_of_the_runtime_is_no_reason_for_a_warning(line: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    assert config_flags(line.split()) == {}
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "listens on its socket" in record.getMessage()


KUBELETS = """
address allowed-unsafe-sysctls anonymous-auth application-metrics-count-limit
authentication-token-webhook authentication-token-webhook-cache-ttl authorization-mode
authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl boot-id-file
bootstrap-kubeconfig cert-dir cgroup-driver cgroup-root cgroups-per-qos client-ca-file
cloud-provider cluster-dns cluster-domain config config-dir container-hints container-log-max-files
container-log-max-size container-runtime-endpoint containerd containerd-namespace
contention-profiling cpu-cfs-quota cpu-cfs-quota-period cpu-manager-policy
cpu-manager-policy-options cpu-manager-reconcile-period enable-controller-attach-detach
enable-debugging-handlers enable-load-reader enable-server enforce-node-allocatable event-burst
event-qps event-storage-age-limit event-storage-event-limit eviction-hard
eviction-max-pod-grace-period eviction-minimum-reclaim eviction-pressure-transition-period
eviction-soft eviction-soft-grace-period exit-on-lock-contention
experimental-allocatable-ignore-eviction experimental-mounter-path fail-cgroupv1 fail-swap-on
feature-gates file-check-frequency global-housekeeping-interval hairpin-mode healthz-bind-address
healthz-port hostname-override housekeeping-interval http-check-frequency
image-credential-provider-bin-dir image-credential-provider-config image-gc-high-threshold
image-gc-low-threshold image-service-endpoint kernel-memcg-notification kube-api-burst
kube-api-content-type kube-api-qps kube-reserved kube-reserved-cgroup kubeconfig kubelet-cgroups
local-storage-capacity-isolation lock-file log-cadvisor-usage log-flush-frequency
log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream
logging-format machine-id-file make-iptables-util-chains manifest-url manifest-url-header
max-housekeeping-interval max-open-files max-pods maximum-dead-containers
maximum-dead-containers-per-container memory-manager-policy minimum-container-ttl-duration
minimum-image-ttl-duration node-ip node-labels node-status-max-images node-status-update-frequency
oom-score-adj pod-cidr pod-manifest-path pod-max-pids pods-per-core port protect-kernel-defaults
provider-id qos-reserved read-only-port register-node register-with-taints registry-burst
registry-qps reserved-cpus reserved-memory resolv-conf root-dir rotate-certificates
rotate-server-certificates runonce runtime-cgroups runtime-request-timeout seccomp-default
serialize-image-pulls storage-driver-buffer-duration storage-driver-db storage-driver-host
storage-driver-password storage-driver-secure storage-driver-table storage-driver-user
streaming-connection-idle-timeout sync-frequency system-cgroups system-reserved
system-reserved-cgroup tls-cert-file tls-cipher-suites tls-min-version tls-private-key-file
topology-manager-policy topology-manager-policy-options topology-manager-scope v version vmodule
volume-plugin-dir volume-stats-agg-period
"""  # `kubelet --help`, v1.36.2


def test_every_flag_of_the_kubelet_is_known():
    ours = {option.lstrip("-") for parameter in command.params for option in parameter.opts}
    tables = (FIELDS.keys(), NOT_NEEDED.keys(), WITHOUT_EFFECT.keys())
    known = set().union(*tables)
    assert set(KUBELETS.split()) <= known | ours
    assert len(known) == sum(map(len, tables)), "no flag is in two tables"
    assert ours & known == {"v"}, "the flag that is also written -v4"


@pytest.mark.parametrize("flag", ["--version", "--version=raw"])
def test_the_version_is_printed_as_by_the_kubelet(flag: str):
    told = CliRunner().invoke(command, [flag])
    assert told.output.startswith("Kubernetes v1.36.")
    assert told.exit_code == 0


def test_a_cloud_provider_that_would_be_built_in_is_refused():
    result = CliRunner().invoke(command, ["--cloud-provider=aws"])
    assert isinstance(result.exception, InvalidInput)
    assert str(result.exception).startswith(
        '--cloud-provider: cloud provider "aws" was specified, but built-in'
    )
