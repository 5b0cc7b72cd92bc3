"""What resolvers a pod gets, by its policy and the node's resolv.conf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod, PodDNSConfig, PodDNSConfigOption, PodSpec
from engine.node.spec.dns import MAX_SEARCH_LINE, pod_dns
from engine.wire import cri_v1_pb2 as cri


def dns(
    resolv_conf: str = "", policy: str = "ClusterFirst", own: PodDNSConfig | None = None, **config: Any
) -> cri.DNSConfig:
    spec = PodSpec(dns_policy=policy, dns_config=own, host_network=config.pop("host_network", False))
    pod = Pod(metadata=ObjectMeta(name="p", namespace="ns"), spec=spec)
    host_ip = config.pop("host_ip", "")
    return pod_dns(pod, KubeletConfiguration(resolv_conf=resolv_conf, **config), host_ip)


@pytest.fixture
def resolv_conf(tmp_path: Path) -> str:
    path = tmp_path / "resolv.conf"
    path.write_text(
        "# nameserver 9.9.9.9\nnameserver 10.0.0.1\nsearch old.example\nsearch . a.example. svc.c.local\n"
        "options ndots:1 edns0\noptions ndots:2\n"
    )
    return str(path)


@pytest.mark.parametrize(
    ("host_ip", "server"), [("10.1.1.1", "127.0.0.1"), ("", "127.0.0.1"), ("fd::1", "::1")]
)
def test_without_a_resolv_conf_there_are_no_resolvers(host_ip: str, server: str) -> None:
    for policy in ("Default", "ClusterFirst"):
        assert dns("", policy, host_ip=host_ip) == cri.DNSConfig(servers=[server], searches=["."])
    assert dns("", "None") == cri.DNSConfig()


def test_the_nodes_last_search_line_and_the_last_of_each_option_count(resolv_conf: str) -> None:
    assert dns(resolv_conf, "Default") == cri.DNSConfig(
        servers=["10.0.0.1"], searches=["a.example", "svc.c.local"], options=["ndots:2", "edns0"]
    )


def test_cluster_dns_has_options_of_its_own_and_each_search_path_once(resolv_conf: str) -> None:
    found = dns(resolv_conf, cluster_dns=["10.96.0.10"], cluster_domain="c.local")
    assert found == cri.DNSConfig(
        servers=["10.96.0.10"],
        searches=["ns.svc.c.local", "svc.c.local", "c.local", "a.example"],
        options=["ndots:5"],
    )
    on_host = dns(resolv_conf, cluster_dns=["10.96.0.10"], host_network=True)
    assert on_host == dns(resolv_conf, "Default")


def test_dns_settings_of_the_pod_come_last_and_its_options_win(resolv_conf: str) -> None:
    own = PodDNSConfig(
        nameservers=["10.0.0.1", "1.1.1.1", "2.2.2.2", "3.3.3.3"],
        searches=["a.example", "b.example"],
        options=[PodDNSConfigOption(name="ndots", value="9"), PodDNSConfigOption(name="rotate")],
    )
    assert dns(resolv_conf, "Default", own) == cri.DNSConfig(
        servers=["10.0.0.1", "1.1.1.1", "2.2.2.2"],
        searches=["a.example", "svc.c.local", "b.example"],
        options=["ndots:9", "edns0", "rotate"],
    )


def test_settings_beyond_the_limits_of_resolvers_are_omitted() -> None:
    label = "a" * 60
    many = PodDNSConfig(searches=["x" * 254, *(f"{label}.{label}.{n}" for n in range(40))])
    found = dns("", "None", many)
    assert 0 < len(found.searches) < 32
    assert len(" ".join(found.searches)) <= MAX_SEARCH_LINE
    assert "x" * 254 not in found.searches
