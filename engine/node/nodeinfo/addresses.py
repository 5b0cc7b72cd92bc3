"""Finds the addresses of the node (kubelet v1.36: `--node-ip`, `nodestatus.NodeAddress`)."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import ipaddress
import logging
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from engine.api.errors import InvalidInput
from engine.api.node import NodeAddress
from engine.api.pod import Pod

DNS_SECONDS: Final = 5.0
LOOPBACK: Final = "127.0.0.1"
SOMEWHERE: Final = {4: "192.0.2.1", 6: "2001:db8::1"}
"""Documentation addresses; the kernel is asked for the route to them, and nothing is sent."""

_SIOCGIFCONF: Final = 0x8912
_IFCONF: Final = struct.Struct("i4xP")
"""`struct ifconf`: length and address of a buffer."""
_IFREQ: Final = struct.Struct("16x4x4s16x")
"""`struct ifreq`, of which only the IPv4 address is read; 40 bytes on machines of 64 bits."""

log = logging.getLogger("kubengine.node")


def parse_node_ips(text: str) -> list[str]:
    """Parse `--node-ip`: one address, or one per IP family; `0.0.0.0` and `::` only choose a family.

    Text that is not an address is logged and ignored. Raises InvalidInput for more addresses or other pairs.
    """
    addresses = []
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            addresses.append(ipaddress.ip_address(part))
        except ValueError:
            log.warning("--node-ip: %r is not an IP address, ignored", part)
    if len(addresses) > 2 or (len(addresses) == 2 and addresses[0].version == addresses[1].version):
        raise InvalidInput(
            "must contain either a single IP or a dual-stack pair of IPs", subject=f"--node-ip {text}"
        )
    if len(addresses) == 2 and any(address.is_unspecified for address in addresses):
        raise InvalidInput("dual-stack node IP cannot include '0.0.0.0' or '::'", subject=f"--node-ip {text}")
    return [str(address) for address in addresses]


def unusable(address: str) -> str:
    """Return why an address cannot be the node's, in the kubelet's words, or an empty text."""
    ip = ipaddress.ip_address(address)
    # In the order of `validateNodeIP`, since an address may be several of these.
    for is_so, what in (
        (ip.is_loopback, "loopback address"),
        (ip.is_multicast, "a multicast address"),
        (ip.is_link_local, "a link-local unicast address"),
        (ip.is_unspecified, "an all zeros address"),
    ):
        if is_so:
            return f"nodeIP can't be {what}"
    if not _is_here(address):
        return f'node IP: "{address}" not found in the host\'s network interfaces'
    return ""


async def node_ips(name: str, given: Sequence[str]) -> list[str]:
    """Return the node's IP addresses, the primary one first.

    In this order: those given, the node's name if it is an address, what DNS has for the name if it is on
    this machine, or the source address of the default route (loopback without one).
    """
    fixed = _fixed(name, given)
    # Only a warning: the address may appear later, as that of a VPN does.
    for each in _specified(given):
        if why := unusable(each):
            log.warning("--node-ip: %s", why)
    return fixed or [await _found(name, given) or LOOPBACK]


class HostAddresses:
    """Keep the current addresses of the node.

    `ips` starts with what `node_ips` found. `refresh` searches again, as kubelet v1.36 does whenever it
    computes the node's status; if nothing is found, the addresses stay. With `external_cloud` the addresses
    of the API server's Node replace them once a cloud's controller has set them. `changed` is called when
    they differ.
    """

    def __init__(
        self,
        name: str,
        given: Sequence[str],
        ips: Sequence[str],
        changed: Callable[[], None],
        *,
        external_cloud: bool = False,
    ) -> None:
        self.ips = tuple(ips)
        self._name, self._given = name, given
        self._changed = changed
        self._external_cloud = external_cloud
        self._of_the_cloud: list[NodeAddress] = []

    @property
    def first(self) -> str:
        """Return the first address; its family is the default for pods."""
        return self.ips[0]

    def listed(self) -> list[NodeAddress]:
        """Return the addresses as the Node's status lists them.

        With `external_cloud` and no `--node-ip` the address is unknown until the cloud has set it.
        """
        if self._of_the_cloud:
            return self._of_the_cloud
        known = () if self._external_cloud and not self._given else self.ips
        return node_addresses(known, self._name)

    def provided(self) -> str:
        """Return the addresses given for a cloud's controller to choose, separated by commas."""
        return ",".join(_specified(self._given)) if self._external_cloud else ""

    def node_changed(self, status: Mapping[str, Any]) -> None:
        """Adopt the addresses in the status of the API server's Node, if a cloud's controller sets them."""
        if not self._external_cloud:
            return
        listed = [
            NodeAddress(type=str(each.get("type", "")), address=str(each.get("address", "")))
            for each in status.get("addresses") or ()
        ]
        if listed == self._of_the_cloud:
            return
        self._of_the_cloud = listed
        by_family: dict[bool, str] = {}
        for kind in ("InternalIP", "ExternalIP"):
            for each in listed:
                if each.type == kind:
                    by_family.setdefault(":" in each.address, each.address)
        if by_family:
            self.ips = tuple(by_family.values())
        self._changed()

    async def refresh(self) -> None:
        # What a cloud's controller has set is its own to change.
        if self._of_the_cloud or _fixed(self._name, self._given):
            return
        found = await _found(self._name, self._given)
        if found and self.ips != (found,):
            log.info("the node's address is now %s, it was %s", found, ", ".join(self.ips))
            self.ips = (found,)
            self._changed()


def node_addresses(ips: Iterable[str], host_name: str) -> list[NodeAddress]:
    """Return the addresses as the Node's status lists them."""
    return [
        *(NodeAddress(type="InternalIP", address=ip) for ip in ips),
        NodeAddress(type="Hostname", address=host_name),
    ]


def pod_ips(pod: Pod, sandbox: Sequence[str], host_ips: Sequence[str]) -> tuple[str, ...]:
    """Return a pod's addresses, one per family, with the family of the node's primary address first.

    `sandbox` are the addresses from the runtime, which a pod keeps when its sandbox is gone. A pod in the
    host's network also keeps its first addresses, and gets the node's second when that appears (kubelet
    v1.36).
    """
    given = sandbox
    if pod.spec.host_network or not sandbox:
        given = [known.ip for known in pod.status.pod_ips or ()]
    # The first address of each family wins, so that a pod keeps what it has told others.
    families: dict[bool, str] = {}
    for ip in (*given, *(host_ips if pod.spec.host_network else ())):
        families.setdefault(":" in ip, ip)
    if len(families) < 2:
        return tuple(families.values())
    first = ":" in host_ips[0]
    return families[first], families[not first]


def default_route(family: int) -> str:
    """Return the source address of the default route, or an empty text."""
    for version in (family, 10 - family):
        with (
            contextlib.suppress(OSError),
            socket.socket(_family(version), socket.SOCK_DGRAM) as probe,
        ):
            # Connecting a datagram socket sends nothing: the kernel chooses the route and its source address.
            probe.connect((SOMEWHERE[version], 9))
            return str(probe.getsockname()[0])
    return ""


def _specified(given: Sequence[str]) -> list[str]:
    return [each for each in given if not ipaddress.ip_address(each).is_unspecified]


def _fixed(name: str, given: Sequence[str]) -> list[str]:
    """Return the addresses that cannot change: those given, or the name if it is an address."""
    if specified := _specified(given):
        return specified
    try:
        return [str(ipaddress.ip_address(name))]
    except ValueError:
        return []


async def _found(name: str, given: Sequence[str]) -> str:
    """Return what DNS has for the name if it is on this machine, or the source address of the
    default route.
    """
    family = ipaddress.ip_address(given[0]).version if given else 4
    known = [address for address in await _resolved(name) if not unusable(address)]
    preferred = [address for address in known if ipaddress.ip_address(address).version == family]
    return next(iter(preferred or known), "") or default_route(family)


def _is_here(address: str) -> bool:
    """Tell whether an interface has the address."""
    # Trying to bind it would not tell: with net.ipv4.ip_nonlocal_bind, which machines with a floating address
    # (keepalived) have set, the kernel binds any address (Documentation/networking/ip-sysctl).
    ip = ipaddress.ip_address(address)
    return ip in (_ipv4_addresses() if ip.version == 4 else _ipv6_addresses())


def _ipv4_addresses() -> set[ipaddress.IPv4Address]:
    """Return the IPv4 addresses of all interfaces, secondary ones included (netdevice(7))."""
    size = 64
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        while True:
            buffer = ctypes.create_string_buffer(size * _IFREQ.size)
            asked = _IFCONF.pack(len(buffer), ctypes.addressof(buffer))
            length, _ = _IFCONF.unpack(fcntl.ioctl(probe, _SIOCGIFCONF, asked))
            # A full buffer may have cut the list off.
            if length < len(buffer):
                break
            size *= 2
    return {ipaddress.IPv4Address(address) for (address,) in _IFREQ.iter_unpack(buffer.raw[:length])}


def _ipv6_addresses() -> set[ipaddress.IPv6Address]:
    """Return the IPv6 addresses of all interfaces; none if the kernel has no IPv6."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return set()
    return {ipaddress.IPv6Address(int(line.split()[0], 16)) for line in lines}


def _family(version: int) -> socket.AddressFamily:
    return socket.AF_INET if version == 4 else socket.AF_INET6


async def _resolved(name: str) -> list[str]:
    try:
        async with asyncio.timeout(DNS_SECONDS):
            # A str would load the codec of international names, with its tables of Unicode.
            host = name.encode("ascii")
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError, TimeoutError):
        return []
    return list(dict.fromkeys(str(each[4][0]) for each in found))
