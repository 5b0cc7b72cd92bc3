"""Which sysctls a pod may set: the kubelet v1.36's safe list, patterns, and shared namespaces."""

from __future__ import annotations

import pytest

from engine.admission.sysctls import SysctlAllowlist, kernel_version, safe_sysctls
from engine.api.errors import InvalidInput
from engine.api.lifecycle import AdmissionRejected
from engine.api.pod import Pod, PodSecurityContext, PodSpec, Sysctl


def pod(name: str, *, network: bool = False, ipc: bool = False) -> Pod:
    context = PodSecurityContext(sysctls=[Sysctl(name="kernel.shm_rmid_forced"), Sysctl(name=name)])
    return Pod(spec=PodSpec(security_context=context, host_network=network, host_ipc=ipc))


def allowlist(*unsafe: str, kernel: tuple[int, int] = (6, 1)) -> SysctlAllowlist:
    return SysctlAllowlist(safe_sysctls(kernel), unsafe)


@pytest.mark.parametrize(
    "name",
    ["net.ipv4.tcp_syncookies", "net/ipv4/tcp_syncookies", "net.ipv4.tcp_wmem", "net.core.x", "fs.mqueue.a"],
)
def test_safe_and_named_sysctls_are_allowed(name: str):
    allowlist("net.core.*", "fs.mqueue.*").check(pod(name))


@pytest.mark.parametrize(
    "name", ["kernel.printk_ratelimit_burst", "net.ipv4.tcp_rmem2", "net.core.somaxconn", "vm.swappiness", ""]
)
def test_any_other_is_forbidden(name: str):
    with pytest.raises(AdmissionRejected) as rejected:
        allowlist().check(pod(name))
    assert rejected.value.reason == "SysctlForbidden"
    assert str(rejected.value) == f'forbidden sysctl: "{name}" not allowlisted'


@pytest.mark.parametrize(
    ("name", "host", "shared"),
    [
        ("net.ipv4.tcp_syncookies", {"network": True}, "Net"),
        ("net.core.rmem", {"network": True}, "Net"),
        ("kernel.shm_rmid_forced", {"ipc": True}, "IPC"),
        ("kernel.msgmax", {"ipc": True}, "IPC"),
    ],
)
def test_a_namespace_of_the_hosts_is_not_the_pods_to_set(name: str, host: dict[str, bool], shared: str):
    allowed = allowlist("net.core.*", "kernel.msg*")
    allowed.check(pod(name))
    with pytest.raises(AdmissionRejected, match=f"not allowed with host {shared} enabled"):
        allowed.check(pod(name, **host))


def test_sysctls_are_safe_from_the_kernel_on_that_gives_each_pod_its_own():
    for kernel, count in (((3, 10), 5), ((3, 16), 6), ((4, 5), 9), ((4, 6), 10), ((4, 15), 12)):
        assert len(safe_sysctls(kernel)) == count
    assert kernel_version("6.1.0-13-amd64") == (6, 1)
    assert kernel_version("strange") == (0, 0)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("vm.swappiness", "not known to be namespaced"),
        ("*", "not known to be namespaced"),
        ("kernel.*", "not known to be namespaced"),
        ("net.*.x", "must have at most 253"),
        ("Net.core", "must have at most 253"),
        ("net." + "x" * 250, "must have at most 253"),
    ],
)
def test_an_impossible_pattern_is_refused_at_start(pattern: str, said: str):
    with pytest.raises(InvalidInput, match=said) as refused:
        allowlist(pattern)
    assert "allowedUnsafeSysctls" in str(refused.value)
