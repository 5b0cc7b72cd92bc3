"""Which addresses a node has, beside what this machine has."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import sys

import pytest

from engine.api.errors import InvalidInput
from engine.api.pod import Pod, PodSpec
from engine.api.status import IP, PodStatus
from engine.node.nodeinfo.addresses import (
    default_route,
    node_addresses,
    node_ips,
    parse_node_ips,
    pod_ips,
    unusable,
)
from engine.node.nodeinfo.machine import runtime_of


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("", []),
        ("10.0.0.1", ["10.0.0.1"]),
        (" 10.0.0.1 , FE80:0::1", ["10.0.0.1", "fe80::1"]),
        ("::", ["::"]),
        ("nonsense,10.0.0.1", ["10.0.0.1"]),
    ],
)
def test_node_ip_is_read_as_the_kubelet_reads_it(text: str, addresses: list[str]):
    assert parse_node_ips(text) == addresses


@pytest.mark.parametrize("text", ["10.0.0.1,10.0.0.2", "10.0.0.1,fe80::1,fe80::2", "0.0.0.0,fd00::1"])
def test_pairs_of_one_family_are_refused(text: str):
    with pytest.raises(InvalidInput, match="--node-ip"):
        parse_node_ips(text)


def test_addresses_that_are_no_nodes():
    assert "loopback" in unusable("127.0.0.1")
    assert "multicast" in unusable("224.0.0.1")
    assert "link-local" in unusable("169.254.1.1")
    assert "all zeros" in unusable("::")
    assert "not found" in unusable("203.0.113.77")
    assert "not found" in unusable("2001:db8::77")


FLOATING = """
from pathlib import Path
from engine.node.nodeinfo.addresses import unusable
for version in ("ipv4", "ipv6"):
    Path(f"/proc/sys/net/{version}/ip_nonlocal_bind").write_text("1")
for address in ("10.9.9.1", "10.9.9.2", "fd00::9", "10.9.9.3", "fd00::8"):
    print(address, unusable(address) == "")
"""


@pytest.mark.root
def test_an_address_that_only_can_be_bound_is_not_the_nodes():
    """With `ip_nonlocal_bind` the kernel binds the address of any other machine, too."""
    addresses = ("10.9.9.1/24", "10.9.9.2/24", "fd00::9/64")  # the second one is secondary
    setting_up = "; ".join(f"ip address add {each} dev lo" for each in addresses)
    inside = f"ip link set lo up; {setting_up}; exec {sys.executable} -c '{FLOATING}'"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", inside], capture_output=True, text=True, check=False
    )
    found = dict(line.split() for line in done.stdout.splitlines())
    here = [address for address, answer in found.items() if answer == "True"]
    assert (len(found), here) == (5, ["10.9.9.1", "10.9.9.2", "fd00::9"]), done.stderr


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        ("1.6.20~ds1", "1.6.20"),
        ("v2.1.0-rc.1", "2.1.0-rc.1"),
        ("2.0.5+x", "2.0.5+x"),
        ("1.30", "1.30"),
        ("dev", "Unknown"),
    ],
)
def test_a_runtimes_version_is_shown_as_the_kubelet_shows_it(version: str, shown: str):
    assert runtime_of("containerd", version) == f"containerd://{shown}"


async def test_given_addresses_come_first_and_both_are_shown():
    assert await node_ips("n1", ["10.0.0.1", "fd00::1"]) == ["10.0.0.1", "fd00::1"]
    shown = [(each.type, each.address) for each in node_addresses(["10.0.0.1", "fd00::1"], "n1")]
    assert shown == [("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1"), ("Hostname", "n1")]


async def test_a_name_that_is_an_address_is_the_address():
    assert await node_ips("198.51.100.7", []) == ["198.51.100.7"]


async def test_an_unknown_name_falls_back_to_the_default_route():
    (found,) = await node_ips("no-such-node.invalid", [])
    assert found == default_route(4)
    with socket.socket(socket.AF_INET6 if ":" in found else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((found, 0))
    (other,) = await node_ips("no-such-node.invalid", ["::"])
    ipaddress.ip_address(other)


V4, V6 = "192.0.2.1", "2001:db8::1"


@pytest.mark.parametrize(
    ("known", "sandbox", "host", "shown"),
    [
        ((), (), (V4,), ()),
        ((), ("10.0.0.2",), (V4,), ("10.0.0.2",)),
        ((), ("10.0.0.2", "fd00::2", "fd00::3"), (V6, V4), ("fd00::2", "10.0.0.2")),
        ((), ("fd00::2", "10.0.0.2"), (V4,), ("10.0.0.2", "fd00::2")),
        (("10.0.0.2",), (), (V4,), ("10.0.0.2",)),
        (("10.0.0.2",), ("10.0.0.3",), (V4,), ("10.0.0.3",)),
    ],
)
def test_a_pod_has_an_address_of_each_family_the_nodes_first(
    known: tuple[str, ...], sandbox: tuple[str, ...], host: tuple[str, ...], shown: tuple[str, ...]
):
    pod = Pod(spec=PodSpec(containers=[]), status=PodStatus(pod_ips=[IP(ip=ip) for ip in known]))
    assert pod_ips(pod, sandbox, host) == shown


@pytest.mark.parametrize(
    ("known", "host", "shown"),
    [
        ((), (V4, V6), (V4, V6)),
        ((), (V6, V4), (V6, V4)),
        (("192.0.2.9",), (V4,), ("192.0.2.9",)),
        (("192.0.2.9",), (V4, V6), ("192.0.2.9", V6)),
    ],
)
def test_a_pod_on_the_hosts_network_has_the_nodes_addresses_and_keeps_them(
    known: tuple[str, ...], host: tuple[str, ...], shown: tuple[str, ...]
):
    spec = PodSpec(containers=[], host_network=True)
    pod = Pod(spec=spec, status=PodStatus(pod_ips=[IP(ip=ip) for ip in known]))
    assert pod_ips(pod, (), host) == shown
