"""Parses kernel messages about system-wide OOM kills. Pure.

Source: kubelet v1.36 (`oom_watcher_linux.go`, cadvisor's `oomparser`): a kill counts as the system's unless
the limit of a memory cgroup caused it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_BEGINS: Final = "invoked oom-killer:"
_BY_LIMIT: Final = re.compile(r"oom-kill:constraint=.*,oom_memcg=(.*),task_memcg=.*,task=(.*),pid=(\d+),uid=")
_BY_LIMIT_BEFORE_5_0: Final = re.compile(r"Task in .* killed as a result of limit of (.*)")
_KILLED: Final = re.compile(r"Killed process (\d+) \((.+)\)")


@dataclass(frozen=True, slots=True)
class OomKill:
    """A kill. `cgroup` is the group whose limit was reached, "/" for the machine's memory."""

    process: str
    pid: int
    cgroup: str

    @property
    def of_the_system(self) -> bool:
        return self.cgroup == "/"


class OomKills:
    """Assembles kills from kernel messages; each kill spans several messages."""

    def __init__(self) -> None:
        self._cgroup: str | None = None

    def read(self, message: str) -> OomKill | None:
        """Return the kill that ends with this message (without its prefix), or None."""
        if _BEGINS in message:
            self._cgroup = "/"
            return None
        if self._cgroup is None:
            return None
        if found := _BY_LIMIT.search(message):
            return self._ended(OomKill(found[2], int(found[3]), found[1]))
        if found := _BY_LIMIT_BEFORE_5_0.search(message):
            self._cgroup = "/" + found[1].strip("/")
        elif found := _KILLED.search(message):
            return self._ended(OomKill(found[2], int(found[1]), self._cgroup))
        return None

    def _ended(self, kill: OomKill) -> OomKill:
        self._cgroup = None
        return kill


def message_of(record: bytes) -> str:
    """Return the text of a record of /dev/kmsg (`PRIORITY,SEQUENCE,TIME,-;TEXT`), without its continuation
    lines.
    """
    return record.partition(b";")[2].partition(b"\n")[0].decode(errors="replace")
