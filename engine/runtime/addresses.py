"""Manage pods' addresses on this machine: a bridge, a subnet, and the address of each pod."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

from engine.api.errors import InvalidInput, Refused
from engine.host.checksummed_file import read_checksummed, write_checksummed
from engine.runtime.shim.network import Netlink

POOL = ipaddress.IPv4Network("10.64.0.0/10")
PREFIX = 20


class PodNetwork:
    """Manage the bridge and subnet of the runtime whose state is in `state`; the choice is kept in a file
    there.

    Without `cidr`, it chooses a /20 of 10.64.0.0/10 that overlaps no route of this machine.
    """

    def __init__(self, state: Path, cidr: str | None = None) -> None:
        self._file = state / "network.json"
        self._wanted = cidr
        self.bridge = "kbe" + hashlib.sha256(str(state).encode()).hexdigest()[:10]
        self.subnet = POOL
        self._taken: set[str] = set()
        self._last = 1

    def open(self, taken: Iterable[str]) -> None:
        """Reserve `taken`, the addresses of existing pods."""
        self._taken = set(taken)

    def ready(self) -> None:
        """Choose the subnet and create the bridge unless that is done. Raise OSError."""
        from engine.runtime import links

        if self._exists() and self.subnet != POOL:
            return
        self.subnet = self._choose()
        write_checksummed(
            self._file, json.dumps({"bridge": self.bridge, "subnet": str(self.subnet)}).encode()
        )
        # An earlier runtime may have been killed after any of these steps.
        with contextlib.suppress(FileExistsError):
            _request(links.bridge(self.bridge), f"bridge {self.bridge}")
        index = socket.if_nametoindex(self.bridge)
        with contextlib.suppress(FileExistsError):
            _request(links.address(index, self.gateway, self.subnet.prefixlen), f"address {self.gateway}")
        _request(links.up(self.bridge), f"bridge {self.bridge}")

    @property
    def gateway(self) -> str:
        return str(self.subnet.network_address + 1)

    def take(self) -> str:
        """Allocate a free address, preferring one that was not released recently. Raise Refused when all are
        taken.
        """
        self.ready()
        count = self.subnet.num_addresses
        # Onward from the last one: an address that was just released may still be in neighbours' ARP tables.
        for step in range(1, count):
            number = (self._last + step) % count
            address = str(self.subnet.network_address + number)
            # 0 is the network's address, 1 the gateway's, the last one the broadcast address.
            if 2 <= number < count - 1 and address not in self._taken:
                self._last = number
                self._taken.add(address)
                return address
        raise Refused("every address is in use", subject=f"pod network {self.subnet}")

    def give_back(self, address: str) -> None:
        self._taken.discard(address)

    def join(self, sandbox_id: str, address: str) -> list[tuple[str, str, str]]:
        """Return the netlink messages that a sandbox's shim sends, in hexadecimal."""
        from engine.runtime import links

        steps = links.pod_steps(
            veth="kb" + sandbox_id[:11],
            master=socket.if_nametoindex(self.bridge),
            ip=address,
            prefix=self.subnet.prefixlen,
            gateway=self.gateway,
        )
        return [(where, message.hex(), what) for where, message, what in steps]

    def remove(self) -> None:
        """Delete the bridge."""
        if self._exists():
            from engine.runtime import links

            _request(links.deletion(self.bridge), f"bridge {self.bridge}")

    def _exists(self) -> bool:
        # /sys/class/net shows the network namespace in which it was mounted, not necessarily this process's.
        try:
            socket.if_nametoindex(self.bridge)
        except OSError:
            return False
        return True

    def _choose(self) -> ipaddress.IPv4Network:
        chosen = read_checksummed(self._file, _subnet, without="choosing another subnet")
        if chosen is not None:
            return chosen
        if self._wanted is not None:
            try:
                return ipaddress.IPv4Network(self._wanted)
            except ValueError as error:
                raise InvalidInput(str(error), subject=f"pod CIDR {self._wanted!r}") from None
        routes = _routes()
        candidates: list[ipaddress.IPv4Network] = list(POOL.subnets(new_prefix=PREFIX))
        first = int.from_bytes(os.urandom(2), "big") % len(candidates)
        for candidate in candidates[first:] + candidates[:first]:
            if not any(candidate.overlaps(route) for route in routes):
                return candidate
        raise Refused("no free subnet; give one with --pod-cidr", subject=f"pod network {POOL}")


def _request(message: bytes, what: str) -> None:
    netlink = Netlink()
    try:
        netlink.request(message, what)
    finally:
        netlink.close()


def _subnet(content: bytes) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(json.loads(content)["subnet"])


def _routes() -> list[ipaddress.IPv4Network]:
    """Return the destinations of this machine's IPv4 routes, without the default route."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in Path("/proc/net/route").read_text().splitlines()[1:]:
            words = line.split("\t")
            network, mask = (socket.inet_ntoa(struct.pack("=I", int(words[i], 16))) for i in (1, 7))
            if mask != "0.0.0.0":
                found.append(ipaddress.IPv4Network(f"{network}/{mask}", strict=False))
    return found
