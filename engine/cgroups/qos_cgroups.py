"""Keeps the root of all pods and the QoS levels at the sums of their pods."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from engine.api.errors import Refused
from engine.api.qos import BEST_EFFORT, GUARANTEED
from engine.cgroups.formulas.conversion import DEFAULT_PERIOD_US
from engine.cgroups.formulas.file_names import CPU_IDLE
from engine.cgroups.formulas.levels import LEVELS, LevelSums, raised_to_usage
from engine.cgroups.formulas.names import CgroupName, level_name, to_path
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.formulas.values import GroupValues
from engine.cgroups.interface_files import MEMORY_LIMIT, MEMORY_USAGE, PAGE
from engine.cgroups.tree import CgroupTree


class QosCgroups:
    """Keep the three level cgroups.

    `sums` covers the pods that count now; `write` updates the files of the changed levels.
    `best_effort_quota` limits all BestEffort pods, in microseconds per default period; None means no limit.
    """

    def __init__(self, tree: CgroupTree, settings: CgroupSettings) -> None:
        self.sums = LevelSums()
        self.names: dict[str, CgroupName] = {level: level_name(settings.root, level) for level in LEVELS}
        self._tree = tree
        self._version = tree.mounts.version
        self._rules = settings.levels
        self._root_values = settings.root_values()
        self._written: dict[str, GroupValues] = {}
        self._raised: set[str] = set()
        self.best_effort_quota: int | None = None

    def make(self) -> None:
        """Create or adopt the three cgroups. In v1 they get all CPUs of their parent."""
        cpuset = self._inherited_cpuset()
        self._rules = replace(self._rules, cpuset=cpuset)
        self._root_values = msgspec.structs.replace(self._root_values, cpuset=cpuset)
        for name in self.names.values():
            self._tree.group(name).delegates = True
            self._tree.make(name)
        self._end_idling()

    def verify(self) -> int:
        """Read every file again; return how many others had changed."""
        return sum(len(self._tree.verify(name)) for name in self.names.values())

    def values(self) -> dict[str, GroupValues]:
        """Return the values of the root (Guaranteed) and of both levels for the current pods."""
        levels = self.sums.values(self._rules)
        protection = levels[GUARANTEED].unified
        root = self._root_values
        levels[GUARANTEED] = msgspec.structs.replace(root, unified=protection) if protection else root
        if self.best_effort_quota is not None:
            levels[BEST_EFFORT] = msgspec.structs.replace(
                levels[BEST_EFFORT], cpu_quota=self.best_effort_quota, cpu_period=DEFAULT_PERIOD_US
            )
        return levels

    def files(self, level: str, values: GroupValues) -> dict[str, str]:
        """Return file → text of one level."""
        return self._tree.rules.files(values, unbounded_huge_pages=level != GUARANTEED)

    def want(self) -> None:
        """Note what every level should have, without writing."""
        for level, values in self.values().items():
            self._tree.group(self.names[level]).wanted.update(self.files(level, values))

    def write(self, *, everything: bool = False) -> int:
        """Write what differs; return the number of files. A memory limit below the usage waits at the usage.

        With `everything`, unchanged levels are compared too. Raises `Refused`.
        """
        levels = self.values()
        changed = [
            level
            for level in LEVELS
            if everything or level in self._raised or levels[level] != self._written.get(level)
        ]
        if not changed:
            return 0
        before = self._tree.writes
        try:
            self._put(self._above_usage({level: levels[level] for level in changed}))
        except Refused as error:
            # v1: pods have used more memory since the usage was read above.
            if error.errno not in (errno.EBUSY, errno.EINVAL):
                raise
            self._put(raised_to_usage(levels, self._usage(LEVELS)))
        # Only after success, so that what was refused is compared again.
        self._written = levels
        return self._tree.writes - before

    def _end_idling(self) -> None:
        """End idling before shares are written: a cgroup that idled under another configuration
        refuses shares.
        """
        best_effort = self.names[BEST_EFFORT]
        if not self._rules.best_effort_idle and self._tree.read(best_effort, CPU_IDLE) == "1":
            self._tree.write_files(best_effort, {CPU_IDLE: "0"})

    def _inherited_cpuset(self) -> str | None:
        """Return the cpuset to inherit: v1 wants the CPUs listed. In v2 a cgroup has its parent's CPUs unless
        somebody sets others, as an administrator does with systemd's AllowedCPUs: None, write nothing."""
        if self._version == 2 or "cpuset" not in self._tree.mounts.controllers:
            return None
        parent = self.names[GUARANTEED][:-1]
        self._tree.make(parent)
        path = to_path(parent, self._tree.driver)
        return self._tree.read_path(path.rstrip("/"), "cpuset.cpus") or None

    def _put(self, levels: Mapping[str, GroupValues]) -> None:
        for level, values in levels.items():
            self._tree.write_files(self.names[level], self.files(level, values))

    def _above_usage(self, levels: dict[str, GroupValues]) -> dict[str, GroupValues]:
        """Raise a limit to the usage, rounded up to a page: below it, v1 refuses the write and v2 kills
        processes.
        """
        file = MEMORY_LIMIT[self._version]
        changing = [
            level
            for level, values in levels.items()
            if values.memory is not None
            and (
                level in self._raised
                or self._tree.group(self.names[level]).directory(file).known.get(file)
                != self.files(level, values)[file]
            )
        ]
        self._raised = set()
        for level, usage in self._usage(changing).items():
            limit = levels[level].memory
            if limit is not None and usage > limit:
                self._raised.add(level)
                levels = levels | {
                    level: msgspec.structs.replace(levels[level], memory=-(-usage // PAGE) * PAGE)
                }
        return levels

    def _usage(self, levels: Iterable[str]) -> dict[str, int]:
        """Return the memory in use in bytes; 0 if it cannot be read."""
        usage: dict[str, int] = {}
        for level in levels:
            text = self._tree.read(self.names[level], MEMORY_USAGE[self._version])
            usage[level] = int(text) if text and text.isdigit() else 0
        return usage
