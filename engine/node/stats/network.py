"""Reads the counters of network devices in a namespace from /proc/PID/net/dev."""

from __future__ import annotations

from pathlib import Path

import msgspec

MOST = 1 << 18


class Interface(msgspec.Struct, frozen=True):
    """Hold the counters of a device since it was created."""

    name: str
    rx_bytes: int
    rx_packets: int
    rx_errors: int
    rx_dropped: int
    tx_bytes: int
    tx_packets: int
    tx_errors: int
    tx_dropped: int

    @property
    def counters(self) -> tuple[int, ...]:
        """Return the counters in their order."""
        return (
            *(self.rx_bytes, self.rx_packets, self.rx_errors, self.rx_dropped),
            *(self.tx_bytes, self.tx_packets, self.tx_errors, self.tx_dropped),
        )


def interfaces_of(pid: int | str) -> list[Interface]:
    """Return the devices that a process sees, without loopback; none if the process is gone."""
    try:
        with Path(f"/proc/{pid}/net/dev").open() as file:
            return read_devices(file.read(MOST))
    except OSError:
        return []


def read_devices(text: str) -> list[Interface]:
    """Parse two header lines, then lines of `NAME: ` and sixteen numbers."""
    found = []
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        numbers = rest.split()
        if len(numbers) < 16 or name.strip() == "lo":
            continue
        rx, tx = [int(number) for number in numbers[:4]], [int(number) for number in numbers[8:12]]
        found.append(Interface(name.strip(), *rx, *tx))
    return found
