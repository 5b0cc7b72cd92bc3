"""Finds the kubelet's system containers: the cgroups of the agent, of the runtime and of all pods."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Final

from engine.host.cgroupfs.mounts import Mounts
from engine.node.stats.group import Groups
from engine.node.stats.used import UsedGroup

_ELSEWHERE: Final[tuple[str, ...]] = ("cpuacct", "cpu", "pids")
"""v1 hierarchies in which a process may be in another group than in the memory hierarchy."""

Places = dict[str, str]
"""The groups of one process by controller, "memory" first."""


class SystemGroups:
    """Find the system groups; `groups` has by name those that exist."""

    def __init__(self, rows: Groups) -> None:
        self._rows = rows
        self._places: dict[str, Places] = {}
        self.groups: dict[str, UsedGroup] = {}

    def update(self, runtime: Path, pods: str | None, mounts: Mounts) -> None:
        """Find the groups; a group that has not moved keeps its rows. `runtime` is the runtime's socket."""
        found = {
            "kubelet": own_places("self", mounts),
            "runtime": _places_of_server(runtime, mounts),
            "pods": {"memory": pods} if pods else {},
        }
        if found == self._places:
            return
        for name, places in self._places.items():
            if places:
                group = self.groups[name]
                self._rows.drop(group.row, len(set(places.values())))
        self._rows.borrowed.clear()
        self._places = found
        self.groups = {name: self._add(places) for name, places in found.items() if places}

    def _add(self, places: Places) -> UsedGroup:
        cgroups = list(dict.fromkeys(places.values()))
        row = self._rows.add(cgroups, within=False)
        for controller, cgroup in places.items():
            if cgroup != cgroups[0]:
                self._rows.borrowed.append((row, row + cgroups.index(cgroup), controller))
        return UsedGroup(cgroups[0], row)


def own_places(pid: int | str, mounts: Mounts) -> Places:
    """Return the groups of a process, none if it is gone."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return {}
    return read_places(text, mounts.version == 1)


def read_places(text: str, v1: bool) -> Places:
    """Parse `NUMBER:CONTROLLERS:PATH` lines; v2 has one path, which is memory's."""
    lines = [line.split(":", 2) for line in text.splitlines()]
    by_controller = {name: path for _, names, path in lines for name in names.split(",")}
    memory = by_controller.get("memory" if v1 else "")
    if memory is None:
        return {}
    # On v1 each hierarchy has its own tree, and systemd may place a service in some of them only.
    others = {name: by_controller[name] for name in _ELSEWHERE if v1 and name in by_controller}
    return {"memory": memory, **others}


def _places_of_server(path: Path, mounts: Mounts) -> Places:
    """Return the groups of the process that listens on a unix socket."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(1.0)
        try:
            asked.connect(str(path))
            # The kernel keeps the credentials of the process that called listen, so nothing is sent
            # (unix(7)).
            credentials = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return {}
    return own_places(struct.unpack("3i", credentials)[0], mounts)
