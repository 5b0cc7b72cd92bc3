"""What a runtime is told of sandboxes and containers, as the kubelet v1.36 tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from engine.api.config import KubeletConfiguration
from engine.api.documents import parse_pods
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.cgroups.formulas.containers import (
    ContainerResources,
    ContainerRules,
    overhead_resources,
    sandbox_resources,
)
from engine.node.sources.static_pods import static_pod
from engine.node.spec import cri_config
from engine.node.spec.dns import pod_hostname, sandbox_hostname
from engine.node.spec.security import MASKED_PATHS, READONLY_PATHS, container_security, sandbox_security
from engine.node.sync.container_config import cri_resources
from engine.node.volumes import container_files
from engine.node.volumes.container_files import hosts_file, hosts_text
from engine.runtime.hollow import HollowRuntime
from engine.wire import cri_v1_pb2 as cri
from tests.node_rig import Rig, container
from tests.waiting import eventually

KINDS = cri.SecurityProfile


def pod_of(spec: dict[str, Any], **metadata: Any) -> Pod:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", **metadata},
        "spec": {"containers": [container()], **spec},
    }
    text = yaml.safe_dump(document).encode()
    return static_pod(parse_pods(text, "/m/web.yaml")[0][0], node_name="n1", origin="/m/web.yaml", seen_at=1)


def security(pod: Pod, **settings: Any) -> cri.LinuxContainerSecurityContext:
    given = {"image_uid": None, "image_username": "", "seccomp_root": Path("/r/seccomp"), **settings}
    return container_security(pod, pod.spec.containers[0], **{"seccomp_default": False, **given})


def test_the_sandbox_runs_under_the_default_seccomp_profile_whatever_its_pod_asks():
    for profile in (None, {"type": "Unconfined"}, {"type": "Localhost", "localhostProfile": "p.json"}):
        pod = pod_of({"securityContext": {"seccompProfile": profile} if profile else {}})
        assert sandbox_security(pod).seccomp == KINDS(profile_type=KINDS.RuntimeDefault)


def test_localhost_profiles_are_in_the_roots_seccomp_directory():
    pod = pod_of(
        {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}}}
    )
    assert security(pod).seccomp == KINDS(profile_type=KINDS.Localhost, localhost_ref="/r/seccomp/a/b.json")
    pod.spec.security_context.seccomp_profile.localhost_profile = None
    with pytest.raises(InvalidInput, match="localhostProfile must be set"):
        security(pod)


@pytest.mark.parametrize("name", ["../p.json", "a/../../p.json", "/etc/p.json"])
def test_a_localhost_profile_elsewhere_is_refused(name: str):
    """A manifest with one is refused when it is read; an API server might not."""
    pod = pod_of({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}}})
    pod.spec.security_context.seccomp_profile.localhost_profile = name
    with pytest.raises(InvalidInput, match="leads out of /r/seccomp"):
        security(pod)


def test_an_image_that_names_no_user_runs_as_root():
    assert security(pod_of({})).run_as_user.value == 0
    assert security(pod_of({})).HasField("run_as_user")
    assert security(pod_of({}), image_uid=7).run_as_user.value == 7
    named = security(pod_of({}), image_username="nobody")
    assert named.run_as_username == "nobody"
    assert not named.HasField("run_as_user")


def test_groups_come_with_their_policy_the_file_group_first():
    context = {"fsGroup": 7, "supplementalGroups": [5, 6], "supplementalGroupsPolicy": "Strict"}
    pod = pod_of({"securityContext": context})
    for message in (security(pod), sandbox_security(pod)):
        assert list(message.supplemental_groups) == [7, 5, 6]
        assert message.supplemental_groups_policy == cri.Strict
    assert security(pod_of({})).supplemental_groups_policy == cri.Merge


def test_a_privileged_container_is_described_like_any_other():
    pod = pod_of({"containers": [container(securityContext={"privileged": True})]})
    message = security(pod, seccomp_default=True)
    assert message.privileged
    assert set(MASKED_PATHS) <= set(message.masked_paths)
    assert tuple(message.readonly_paths) == READONLY_PATHS
    assert message.seccomp.profile_type == KINDS.RuntimeDefault
    own = [container(securityContext={"procMount": "Unmasked"})]
    unmasked = pod_of({"containers": own, "hostUsers": False})
    assert not security(unmasked).masked_paths
    assert not security(unmasked).readonly_paths


def test_a_pod_has_the_hosts_users_unless_it_has_a_range():
    pod = pod_of({})
    assert security(pod).namespace_options.userns_options.mode == cri.NODE
    mapped = cri.UserNamespace(mode=cri.POD, uids=[cri.IDMapping(host_id=65536, length=65536)])
    assert security(pod, users=mapped).namespace_options.userns_options == mapped
    assert sandbox_security(pod, mapped).namespace_options.userns_options == mapped


@pytest.mark.parametrize(
    ("annotation", "profile"),
    [
        ("runtime/default", KINDS(profile_type=KINDS.RuntimeDefault)),
        ("unconfined", KINDS(profile_type=KINDS.Unconfined)),
        ("localhost/mine", KINDS(profile_type=KINDS.Localhost, localhost_ref="mine")),
    ],
)
def test_app_armor_is_sent_in_both_forms_and_read_from_both(annotation, profile):
    annotations = {"container.apparmor.security.beta.kubernetes.io/c": annotation}
    message = security(pod_of({}, annotations=annotations))
    assert message.apparmor == profile
    assert message.apparmor_profile == annotation


@pytest.mark.parametrize(
    ("spec", "name", "domain", "kernel"),
    [
        ({}, "web-n1", "", "web-n1"),
        ({"hostname": "h"}, "h", "", "h"),
        ({"hostname": "h", "subdomain": "s"}, "h", "s.default.svc.c.local", "h"),
        ({"subdomain": "s"}, "web-n1", "s.default.svc.c.local", "web-n1"),
        (
            {"hostname": "h", "subdomain": "s", "setHostnameAsFQDN": True},
            "h",
            "s.default.svc.c.local",
            "h.s.default.svc.c.local",
        ),
        ({"hostname": "h", "setHostnameAsFQDN": True}, "h", "", "h"),
        ({"hostnameOverride": "o.example.com", "subdomain": "s"}, "o.example.com", "", "o.example.com"),
        ({"hostnameOverride": "o" * 62 + "-x"}, "o" * 62, "", "o" * 62),
        ({"hostNetwork": True}, "web-n1", "", ""),
    ],
)
def test_host_names(spec, name, domain, kernel):
    pod = pod_of(spec)
    assert (pod_hostname(pod, "c.local").name, pod_hostname(pod, "c.local").domain) == (name, domain)
    assert sandbox_hostname(pod, "c.local") == kernel


def test_a_whole_name_that_the_kernel_cannot_hold_is_refused():
    pod = pod_of({"hostname": "h" * 40, "subdomain": "s" * 20, "setHostnameAsFQDN": True})
    with pytest.raises(InvalidInput, match=r"FQDN h+\.s+\.default\.svc\.c is too long \(64 characters"):
        sandbox_hostname(pod, "c")


@pytest.mark.parametrize(
    ("written", "sent"), [("rel/x", "/rel/x"), ("./a/../b", "/b"), ("/as/it//is/", "/as/it//is/")]
)
def test_a_relative_mount_path_starts_at_the_containers_root(written: str, sent: str):
    assert cri_config.mount(written, Path("/h")).container_path == sent
    assert cri_config.image_mount(written, "i", "sha", "").container_path == sent


def test_sysctls_go_to_the_runtime_with_dots_each_once():
    names = ("net.ipv4.tcp_syncookies", "net/ipv4/tcp_syncookies", "net/ipv4/conf/eth0.1/x")
    sysctls = [{"name": name, "value": str(number)} for number, name in enumerate(names)]
    sandbox = cri_config.sandbox_config(
        pod_of({"securityContext": {"sysctls": sysctls}}),
        attempt=0,
        hostname="h",
        dns=cri.DNSConfig(),
        cgroup_parent="",
        config=KubeletConfiguration(),
        overhead=cri.LinuxContainerResources(),
        resources=cri.LinuxContainerResources(),
    )
    assert dict(sandbox.linux.sysctls) == {"net.ipv4.tcp_syncookies": "1", "net.ipv4.conf.eth0/1.x": "2"}


def test_etc_hosts_names_the_pod_with_its_domain_and_its_aliases():
    pod = pod_of({"subdomain": "s", "hostAliases": [{"ip": "10.9.9.9", "hostnames": ["a", "b"]}]})
    text = hosts_text(pod, ("10.0.0.2", "fd00::2"), pod_hostname(pod, "c"), "")
    assert text.splitlines()[7:] == [
        "10.0.0.2\tweb-n1.s.default.svc.c\tweb-n1",
        "fd00::2\tweb-n1.s.default.svc.c\tweb-n1",
        "",
        "# Entries added by HostAliases.",
        "10.9.9.9\ta\tb",
    ]
    pod = pod_of({"hostNetwork": True})
    text = hosts_text(pod, ("10.0.0.2",), pod_hostname(pod, "c"), "1.2.3.4 node\n")
    assert text == "# Kubernetes-managed hosts file (host network).\n1.2.3.4 node\n"


def test_a_hosts_file_of_the_node_that_is_not_utf_8_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    nodes = tmp_path / "hosts"
    nodes.write_bytes(b"1.2.3.4 node # B\xfcro\n")
    monkeypatch.setattr(container_files, "NODE_HOSTS", nodes)
    pod = pod_of({"hostNetwork": True})
    written = hosts_file(tmp_path, pod, ("10.0.0.2",), pod_hostname(pod, "c"))
    assert nodes.read_bytes() in written.read_bytes()


def test_sandboxes_receive_the_sum_of_their_containers_and_the_overhead_separately():
    rules = ContainerRules(memory_capacity=1 << 34)
    sized = {"requests": {"cpu": "250m"}, "limits": {"cpu": "500m", "memory": "64Mi"}}
    pod = pod_of({"containers": [container(resources=sized), container("d", resources=sized)]})
    assert overhead_resources(pod, rules).cpu_shares == 0
    pod.spec.overhead = {"cpu": Quantity.parse("100m"), "memory": Quantity.parse("8Mi")}
    together, beside = sandbox_resources(pod, rules), overhead_resources(pod, rules)
    assert (together.cpu_shares, together.cpu_quota, together.memory_limit_in_bytes) == (
        512,
        100_000,
        128 << 20,
    )
    assert (beside.cpu_shares, beside.cpu_quota, beside.memory_limit_in_bytes) == (102, 10_000, 8 << 20)
    assert sandbox_resources(pod_of({}), rules).cpu_shares == 2


def test_the_runtime_receives_every_amount():
    values = ContainerResources(
        cpu_period=1, cpu_quota=2, cpu_shares=3, memory_limit_in_bytes=4, oom_score_adj=5, cpuset_cpus="6",
        cpuset_mems="7", unified={"8": "9"}, memory_swap_limit_in_bytes=10,
    )  # fmt: skip
    told = cri_resources(msgspec.structs.replace(values, hugepage_limits={"2MB": 11}))
    assert [(limit.page_size, limit.limit) for limit in told.hugepage_limits] == [("2MB", 11)]
    told.ClearField("hugepage_limits")
    assert {field.name: value for field, value in told.ListFields()} == {
        name: value for name, value in msgspec.structs.asdict(values).items() if value
    }


async def test_the_runtime_receives_everything(rig: Rig, hollow: HollowRuntime):
    rig.config.cluster_domain = "c.local"
    await rig.start()
    ports = [{"containerPort": 80}, {"containerPort": 80}, {"containerPort": 81, "hostPort": 8081}]
    rig.write(
        "web",
        {
            "hostname": "h",
            "subdomain": "s",
            "setHostnameAsFQDN": True,
            "securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}},
            "overhead": {"cpu": "100m"},
            "initContainers": [container("i", ports=[{"containerPort": 9}])],
            "containers": [
                container(
                    ports=ports,
                    resources={"limits": {"memory": "32Mi"}},
                    lifecycle={"preStop": {"httpGet": {"port": 80, "path": "/"}}},
                )
            ],
        },
        annotations={"runtime.kubengine.dev/exit-after.i": "10ms"},
    )
    await eventually(lambda: rig.phase("web") == "Running")
    sandbox = next(iter(hollow.service.records.sandboxes.values())).config
    assert sandbox.hostname == "h.s.default.svc.c.local"
    assert [(p.container_port, p.host_port) for p in sandbox.port_mappings] == [(80, 0), (81, 8081)]
    assert sandbox.linux.resources.memory_limit_in_bytes == 32 << 20
    assert sandbox.linux.overhead.cpu_shares == 102
    assert sandbox.linux.security_context.seccomp.profile_type == KINDS.RuntimeDefault
    main = next(c.config for c in hollow.service.records.containers.values() if c.config.metadata.name == "c")
    assert main.linux.security_context.seccomp.localhost_ref == str(rig.root / "seccomp" / "p.json")
    assert main.annotations["io.kubernetes.container.ports"] == (
        '[{"containerPort":80,"protocol":"TCP"},{"containerPort":80,"protocol":"TCP"},'
        '{"hostPort":8081,"containerPort":81,"protocol":"TCP"}]'
    )
    assert main.annotations["io.kubernetes.container.preStopHandler"] == (
        '{"httpGet":{"path":"/","port":80,"scheme":"HTTP"}}'
    )
    hosts = (rig.root / "pods" / rig.pod("web").uid / "etc-hosts").read_text()
    assert "\th.s.default.svc.c.local\th\n" in hosts
