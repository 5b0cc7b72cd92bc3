"""Adjusts the CPU limit of BestEffort pods to what all other pods use.

It reads three small files every two seconds, and nothing while there is no BestEffort pod.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from engine.api.decisions import Decisions
from engine.api.qos import BEST_EFFORT, GUARANTEED
from engine.cgroups.formulas.best_effort_limit import BestEffortLimitRules, Used
from engine.cgroups.manager import CgroupManager
from engine.host.tasks import Tasks

INTERVAL: Final = 2.0
STEP_SECONDS: Final = 30.0
STAT: Final = Path("/proc/stat")
TICKS: Final = os.sysconf("SC_CLK_TCK")

HELD: Final = "other workloads use the CPU: BestEffort pods are limited to what they leave"
EASED: Final = "other workloads leave BestEffort pods the CPU that they use"


class _Counters(NamedTuple):
    """Hold CPU seconds since an arbitrary start, and the time of reading."""

    at: float
    node: float
    pods: float
    best_effort: float


class BestEffortLimiter:
    """Adjust the limit between `start` and `stop`, which removes it. `busy` returns the CPU seconds that the
    machine has worked.
    """

    def __init__(
        self,
        cgroups: CgroupManager,
        rules: BestEffortLimitRules,
        *,
        decisions: Decisions,
        tasks: Tasks,
        busy: Callable[[], float] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        interval: float = INTERVAL,
    ) -> None:
        self.rules = rules
        self.ceiling: int | None = None
        self._cgroups, self._decisions = cgroups, decisions
        self._busy, self._monotonic, self._interval = busy or machine_busy, monotonic, interval
        self._task = tasks.task("best-effort-cpu")
        self._last: _Counters | None = None
        self._held = False

    async def start(self) -> None:
        self._task.start(self._loop)

    async def stop(self) -> None:
        # Before the limit is removed: the loop would set it again.
        await self._task.stop()
        self._set(None)

    def update(self) -> None:
        """Measure since the last reading and set the limit. Raises `Refused`, and `OSError` if the usage
        cannot be read.
        """
        if not self._cgroups.levels.sums.best_effort:
            self._last, self._held = None, False
            self._set(None)
            return
        before, self._last = self._last, self._read()
        # A rate needs two readings.
        if before is None:
            return
        used = _used(before, self._last)
        limited = self.ceiling
        self._set(self.rules.ceiling(used, limited))
        held = limited is not None and self.rules.holds(limited, used, self._held)
        if held != self._held:
            self._held = held
            self._record(used, held)

    def _record(self, used: Used, held: bool) -> None:
        inputs = {
            "capacity": self.rules.capacity,
            "ceiling": self.ceiling,
            "node": used.node,
            "pods": used.pods,
            "bestEffort": used.best_effort,
        }
        outcome, reason = ("limited", HELD) if held else ("released", EASED)
        self._decisions.record("best-effort-cpu", outcome, reason, inputs)

    def _set(self, milli: int | None) -> None:
        if milli != self.ceiling:
            self._cgroups.limit_best_effort(milli)
            self.ceiling = milli

    def _read(self) -> _Counters:
        names = self._cgroups.levels.names
        return _Counters(
            self._monotonic(),
            self._busy(),
            self._cgroups.cpu_seconds(names[GUARANTEED]),
            self._cgroups.cpu_seconds(names[BEST_EFFORT]),
        )

    async def _loop(self) -> None:
        while True:
            with self._task.step(STEP_SECONDS):
                self.update()
            await asyncio.sleep(self._interval)


def _used(before: _Counters, after: _Counters) -> Used:
    seconds = max(after.at - before.at, 1e-3)
    return Used(
        *(max(round((b - a) / seconds * 1000), 0) for a, b in zip(before[1:], after[1:], strict=True))
    )


def machine_busy(stat: Path = STAT) -> float:
    """Return the CPU seconds since boot in which the machine was not idle. Raises `OSError`.

    Time that a hypervisor took counts too, because nobody on this machine can use it.
    """
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, stat.read_bytes().split(b"\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS
