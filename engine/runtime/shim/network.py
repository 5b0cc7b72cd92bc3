"""A pod's network over raw netlink: a veth pair to a bridge, an address, a default route.

A library for all of netlink costs 17 ms and 25 MB a time; these six messages cost about one
millisecond. Numbers are the kernel's (linux/rtnetlink.h, linux/if_link.h, linux/veth.h).
"""

from __future__ import annotations

import os
import socket
import struct

NLMSG_ERROR = 2
RTM_NEWLINK, RTM_DELLINK, RTM_NEWADDR, RTM_NEWROUTE = 16, 17, 20, 24
REQUEST, ACK, EXCLUSIVE, CREATE = 1, 4, 0x200, 0x400
IFLA_IFNAME, IFLA_MASTER, IFLA_LINKINFO, IFLA_NET_NS_FD = 3, 10, 18, 28
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
RTA_OIF, RTA_GATEWAY = 4, 5
NLA_NESTED = 0x8000
IFF_UP = 1

HEADER = struct.Struct("=IHHII")
LINK = struct.Struct("=BxHiII")
ADDRESS = struct.Struct("=BBBBI")
ROUTE = struct.Struct("=BBBBBBBBI")


class Netlink:
    """A route socket of the network namespace in which it was opened."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.settimeout(10)
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def call(self, kind: int, flags: int, body: bytes, what: str) -> None:
        """Send one message and wait for its acknowledgement. Raises OSError about `what`."""
        self._sequence += 1
        size = HEADER.size + len(body)
        self._socket.send(HEADER.pack(size, kind, REQUEST | ACK | flags, self._sequence, 0) + body)
        while True:
            answer = self._socket.recv(65536)
            _, answer_kind, _, sequence, _ = HEADER.unpack_from(answer)
            if answer_kind == NLMSG_ERROR and sequence == self._sequence:
                number = -struct.unpack_from("=i", answer, HEADER.size)[0]
                if number:
                    raise OSError(number, os.strerror(number), what)
                return

    def up(self, name: str, *, master: int = 0) -> None:
        """Bring it up, as a port of the bridge with index `master` where one is given."""
        body = LINK.pack(0, 0, 0, IFF_UP, IFF_UP) + _attribute(IFLA_IFNAME, name.encode() + b"\0")
        if master:
            body += _attribute(IFLA_MASTER, struct.pack("=I", master))
        self.call(RTM_NEWLINK, 0, body, f"network interface {name}")

    def add_bridge(self, name: str) -> None:
        info = _attribute(IFLA_INFO_KIND, b"bridge")
        body = (
            LINK.pack(0, 0, 0, 0, 0)
            + _attribute(IFLA_IFNAME, name.encode() + b"\0")
            + _attribute(IFLA_LINKINFO | NLA_NESTED, info)
        )
        self.call(RTM_NEWLINK, CREATE | EXCLUSIVE, body, f"bridge {name}")

    def add_veth(self, name: str, peer: str, peer_namespace: int) -> None:
        """`name` in this namespace, `peer` in the namespace of that descriptor."""
        other = (
            LINK.pack(0, 0, 0, 0, 0)
            + _attribute(IFLA_IFNAME, peer.encode() + b"\0")
            + _attribute(IFLA_NET_NS_FD, struct.pack("=I", peer_namespace))
        )
        data = _attribute(IFLA_INFO_DATA | NLA_NESTED, _attribute(VETH_INFO_PEER | NLA_NESTED, other))
        info = _attribute(IFLA_INFO_KIND, b"veth") + data
        body = (
            LINK.pack(0, 0, 0, 0, 0)
            + _attribute(IFLA_IFNAME, name.encode() + b"\0")
            + _attribute(IFLA_LINKINFO | NLA_NESTED, info)
        )
        self.call(RTM_NEWLINK, CREATE | EXCLUSIVE, body, f"network interface pair {name}, {peer}")

    def delete(self, name: str) -> None:
        body = LINK.pack(0, 0, 0, 0, 0) + _attribute(IFLA_IFNAME, name.encode() + b"\0")
        self.call(RTM_DELLINK, 0, body, f"network interface {name}")

    def add_address(self, index: int, address: str, prefix: int) -> None:
        packed = socket.inet_aton(address)
        body = ADDRESS.pack(socket.AF_INET, prefix, 0, 0, index)
        body += _attribute(IFA_LOCAL, packed) + _attribute(IFA_ADDRESS, packed)
        self.call(RTM_NEWADDR, CREATE | EXCLUSIVE, body, f"address {address}/{prefix}")

    def add_default_route(self, index: int, gateway: str) -> None:
        main_table, boot_protocol, universe, unicast = 254, 3, 0, 1
        body = ROUTE.pack(socket.AF_INET, 0, 0, 0, main_table, boot_protocol, universe, unicast, 0)
        body += _attribute(RTA_GATEWAY, socket.inet_aton(gateway))
        body += _attribute(RTA_OIF, struct.pack("=I", index))
        self.call(RTM_NEWROUTE, CREATE | EXCLUSIVE, body, f"route through {gateway}")


def join_bridge(
    host: Netlink, host_namespace: int, *, veth: str, bridge: int, address: str, prefix: int, gateway: str
) -> None:
    """In a fresh network namespace: lo up, eth0 with an address, its peer `veth` on the host's bridge.

    `bridge` is the bridge's index in the host's namespace.
    """
    pod = Netlink()
    try:
        pod.up("lo")
        pod.add_veth("eth0", veth, host_namespace)
        host.up(veth, master=bridge)
        index = socket.if_nametoindex("eth0")
        pod.add_address(index, address, prefix)
        pod.up("eth0")
        pod.add_default_route(index, gateway)
    finally:
        pod.close()
        host.close()


def _attribute(kind: int, value: bytes) -> bytes:
    padding = -len(value) % 4
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * padding
