"""The paths and commands of the machine that a node agent uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec


class HostPlaces(msgspec.Struct, frozen=True):
    """Name the paths and commands of the machine that the agent uses."""

    sysctls: Path = Path("/proc/sys")
    swaps: Path = Path("/proc/swaps")
    kmsg: Path = Path("/dev/kmsg")
    oom_score: Path = Path("/proc/self/oom_score_adj")
    iptables: Sequence[str] = ("iptables",)
    ip6tables: Sequence[str] = ("ip6tables",)
    system_bus: str = "unix:path=/run/dbus/system_bus_socket"
    logind_drop_ins: Path = Path("/etc/systemd/logind.conf.d")
