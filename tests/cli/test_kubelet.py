"""`kubengine kubelet` reads flags, a file and drop-ins as the kubelet does."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput
from engine.cli._kubelet_config import load_kubelet_config
from engine.cli._kubelet_flags import FIELDS, SWITCHES, WITHOUT_EFFECT
from engine.cli.kubelet import config_flags

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
    config = load_kubelet_config(None, None, {flag: text})
    other = {flag: "false"} if flag in SWITCHES else {}
    assert config != load_kubelet_config(None, None, other), field


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
    [("max-pods", "x"), ("fail-swap-on", "maybe"), ("feature-gates", "A"), ("register-with-taints", "a=b")],
)
def test_a_bad_value_names_its_flag(flag: str, text: str):
    with pytest.raises(InvalidInput, match=f"--{flag}"):
        load_kubelet_config(None, None, {flag: text})


def test_flags_are_split_as_the_kubelet_splits_them(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    line = (
        "--max-pods=5 --max-pods 7 --fail-swap-on=false --seccomp-default --cgroup-root /x "
        "--cloud-provider /y --lock-file=/z --no-such-flag=1 stray"
    )
    assert config_flags(line.split()) == {
        "max-pods": "7",
        "fail-swap-on": "false",
        "seccomp-default": "true",
        "cgroup-root": "/x",
    }
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert WITHOUT_EFFECT["cloud-provider"] in said[0]
    assert "no-such-flag" in said[2]
