"""Keeps the processes of given cgroups, such as `system.slice`, off exclusive CPUs by their cpusets."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from engine.api import cpu_set as cpu_sets
from engine.api.decisions import Decisions
from engine.api.errors import InvalidInput
from engine.metrics import Registry

FILE = "cpuset.cpus"
FIELD = "cpus.systemCgroups"

log = logging.getLogger("kubengine.cpus")


class SystemProcesses:
    """Set the cpusets of cgroups below `root`, the mount that has the controller cpuset.

    Raises `InvalidInput` for a cgroup without that controller.
    """

    def __init__(
        self, groups: Sequence[str], root: Path, *, decisions: Decisions, registry: Registry
    ) -> None:
        self._files = {group: root / group.strip("/") / FILE for group in groups}
        self._decisions = decisions
        self._written: dict[str, str] = {}
        for group, file in self._files.items():
            if not group.strip("/") or ".." in group.split("/") or not file.exists():
                raise InvalidInput(f"no cgroup {group!r} with the controller cpuset: {file}", subject=FIELD)
        self._writes = registry.counter(
            "kubengine_system_cpuset_writes_total",
            "How often the CPUs of a cgroup of system processes were set, by outcome.",
            ("outcome",),
        )

    def allow(self, cpus: int) -> None:
        """Let the processes run on these CPUs only. A cgroup that refuses keeps its CPUs, and is asked again
        at the next change.
        """
        text = cpu_sets.text(cpus)
        for group, file in self._files.items():
            if self._written.get(group) == text:
                continue
            # Removed first: after a failure the value in the kernel is not known to be right.
            before = self._written.pop(group, "")
            try:
                file.write_text(text)
            except OSError as error:
                log.warning("%s: cannot be set to %s: %s", file, text, error.strerror)
                self._writes.inc("failed")
                continue
            self._written[group] = text
            self._writes.inc("written")
            inputs = {"cgroup": group, "before": before, "cpus": text}
            self._decisions.record("cpus", "excluded", "", inputs)
