"""Moves running containers to the CPUs that they should have, through the runtime."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import reduce
from operator import or_
from typing import NamedTuple

from engine.api import cpu_set as cpu_sets
from engine.api.errors import Refused
from engine.host.tasks import RetryTimer, Tasks

STEP_SECONDS = 60.0

log = logging.getLogger("kubengine.cpus")


class RunningContainer(NamedTuple):
    """Name a running container by its id in the runtime."""

    pod_uid: str
    name: str
    id: str


class _Move(NamedTuple):
    """Hold a container, the CPUs that it should have, and those that it leaves and gains. One whose CPUs are
    unknown leaves none.
    """

    container: RunningContainer
    wanted: str
    leaves: int
    gains: int


class ContainerMover:
    """Compare `wanted(pod uid, container)` with the CPUs last written to the runtime, in a background task.

    `running` lists the running containers, and `move(container id, CPUs)` updates one in the runtime. After a
    failure the task tries again in `period` seconds. `prepare` is called before each comparison.
    """

    def __init__(
        self,
        wanted: Callable[[str, str], str],
        running: Callable[[], Iterable[RunningContainer]],
        move: Callable[[str, str], Awaitable[None]],
        *,
        prepare: Callable[[], None],
        period: float,
        tasks: Tasks,
    ) -> None:
        self._wanted = wanted
        self._running = running
        self._move = move
        self._prepare = prepare
        self._written: dict[str, str] = {}
        self._created: dict[str, dict[str, str]] = {}
        """CPUs that containers were created with and were not seen running since, by pod uid and name."""
        self._wake = asyncio.Event()
        self._done = asyncio.Event()
        self._done.set()
        self._round = asyncio.Event()
        self._retry = RetryTimer(period, self._wake.set)
        self._task = tasks.task("cpu-manager")

    def start(self) -> None:
        self._task.start(self._move_when_woken)
        self.changed()

    async def stop(self) -> None:
        """Stop moving. Containers keep their CPUs."""
        self._retry.cancel()
        await self._task.stop()

    def created(self, pod_uid: str, container: str, cpus: str) -> None:
        """Remember the CPUs that a container is about to be created with."""
        self._created.setdefault(pod_uid, {})[container] = cpus

    def forget(self, pod_uid: str) -> None:
        """Forget a pod whose containers have ended, perhaps before they were seen running."""
        self._created.pop(pod_uid, None)

    def changed(self) -> None:
        """Compare soon; until then `wait_done` waits."""
        self._done.clear()
        self._wake.set()

    def wake(self) -> None:
        """Compare soon, if the task runs."""
        if self._task.wanted:
            self._wake.set()

    async def wait_done(self) -> None:
        """Return when all containers run on their CPUs."""
        await self._done.wait()

    async def wait_placed(self, pod_uid: str) -> None:
        """Return when the pod's running containers are on their CPUs, wherever those of others are."""
        while any(move.container.pod_uid == pod_uid for move in self._due()):
            await self._round.wait()

    async def _move_when_woken(self) -> None:
        # Also when it starts again after a failure, which has used up what woke it.
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            with self._task.step(STEP_SECONDS):
                moved = await self._move_all()
            self._round.set()
            self._round = asyncio.Event()
            if not moved:
                self._retry.start()
            # A change meanwhile leads to another round, and `wait_done` has to wait for that.
            elif not self._wake.is_set():
                self._done.set()

    async def _move_all(self) -> bool:
        """Move each container that is on wrong CPUs; return whether all moves succeeded.

        None moves to CPUs that another one has yet to leave, or could not leave.
        """
        self._prepare()
        pending = self._due()
        occupied = 0
        succeeded = True
        while pending:
            left = reduce(or_, (move.leaves for move in pending), occupied)
            ready = [move for move in pending if not move.gains & left]
            # Containers that exchange CPUs wait for each other; one of them has to go first.
            ready = ready or [move for move in pending if not move.gains & occupied][:1]
            if not ready:
                return False
            for move in ready:
                if not await self._apply(move.container, move.wanted):
                    succeeded = False
                    occupied |= move.leaves
            pending = [move for move in pending if move not in ready]
        return succeeded

    def _due(self) -> list[_Move]:
        """Return the moves of containers that are on wrong CPUs."""
        running = list(self._running())
        self._written = {one.id: self._written[one.id] for one in running if one.id in self._written}
        due = []
        for one in running:
            wanted = self._wanted(one.pod_uid, one.name)
            # A container that is new here has what it was created with; it is moved only if that has become
            # wrong.
            created = self._created.get(one.pod_uid, {})
            if one.id not in self._written and one.name in created:
                self._written[one.id] = created.pop(one.name)
            written = self._written.get(one.id, "")
            if wanted and written != wanted:
                before, after = cpu_sets.parse(written), cpu_sets.parse(wanted)
                due.append(_Move(one, wanted, leaves=before & ~after, gains=after & ~before))
        return due

    async def _apply(self, one: RunningContainer, wanted: str) -> bool:
        """Write the CPUs of a container to the runtime; return whether it accepted them."""
        try:
            await self._move(one.id, wanted)
        except Refused as error:
            log.warning("container %s of pod %s stays on other CPUs: %s", one.name, one.pod_uid, error)
            return False
        self._written[one.id] = wanted
        return True
