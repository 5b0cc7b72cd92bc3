"""Build the kernel messages of pods' network with pyroute2, in the long-lived runtime process.

The library costs 0.2 s and 14 MB to load, too much for a short-lived process: shims only send the messages
built here (`shim.network`). No lookup of the index of a pod's interface is needed, since it is assigned
here.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, nlmsg
from pyroute2.netlink.rtnl import RTM_DELLINK, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE, rt_proto, rt_type
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP, ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from engine.runtime.shim.network import HOST, POD, Step

POD_INDEX = 64
"""Index of a pod's eth0, above those of the few interfaces that the kernel creates in a new namespace."""

MAIN_TABLE = 254


def bridge(name: str) -> bytes:
    """Create a bridge."""
    link = _link(name, linkinfo=[("IFLA_INFO_KIND", "bridge")])
    return _encoded(link, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL)


def deletion(name: str) -> bytes:
    return _encoded(_link(name), RTM_DELLINK)


def up(name: str, master: int = 0) -> bytes:
    """Bring an interface up, as a port of the bridge with index `master` if given."""
    link = _link(name, master=master)
    link["flags"] = link["change"] = IFF_UP
    return _encoded(link, RTM_NEWLINK)


def address(index: int, ip: str, prefix: int) -> bytes:
    message = ifaddrmsg()
    message["family"], message["prefixlen"], message["index"] = socket.AF_INET, prefix, index
    message["attrs"] = [("IFA_LOCAL", ip), ("IFA_ADDRESS", ip)]
    return _encoded(message, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL)


def pod_steps(*, veth: str, master: int, ip: str, prefix: int, gateway: str) -> Iterator[Step]:
    """Build the steps for a fresh namespace: lo up, eth0 with an address, its peer `veth` on the bridge of
    index `master`.
    """
    pair = f"network interface pair eth0, {veth}"
    yield Step(POD, up("lo"), "network interface lo")
    yield Step(POD, _pair(veth), pair)
    yield Step(HOST, up(veth, master), f"network interface {veth}")
    yield Step(POD, address(POD_INDEX, ip, prefix), f"address {ip}/{prefix}")
    yield Step(POD, up("eth0"), "network interface eth0")
    yield Step(POD, _default_route(gateway), f"route through {gateway}")


def _pair(peer: str) -> bytes:
    """Create a pair: eth0 here, `peer` in the network namespace of this process."""
    # The message is sent from inside of the pod's namespace, so the peer has to be moved out of it.
    other = {"attrs": [("IFLA_IFNAME", peer), ("IFLA_NET_NS_PID", os.getpid())]}
    data = {"attrs": [("VETH_INFO_PEER", other)]}
    link = _link("eth0", linkinfo=[("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", data)])
    link["index"] = POD_INDEX
    return _encoded(link, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL)


def _default_route(gateway: str) -> bytes:
    message = rtmsg()
    message["family"], message["table"] = socket.AF_INET, MAIN_TABLE
    message["proto"], message["type"] = rt_proto["boot"], rt_type["unicast"]
    message["attrs"] = [("RTA_GATEWAY", gateway), ("RTA_OIF", POD_INDEX)]
    return _encoded(message, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL)


def _link(name: str, *, linkinfo: list[tuple[str, Any]] | None = None, master: int = 0) -> ifinfmsg:
    message = ifinfmsg()
    message["attrs"] = [("IFLA_IFNAME", name)]
    if master:
        message["attrs"].append(("IFLA_MASTER", master))
    if linkinfo is not None:
        message["attrs"].append(("IFLA_LINKINFO", {"attrs": linkinfo}))
    return message


def _encoded(message: nlmsg, kind: int, flags: int = 0) -> bytes:
    message["header"]["type"] = kind
    message["header"]["flags"] = NLM_F_REQUEST | NLM_F_ACK | flags
    message.encode()
    return bytes(message.data)
