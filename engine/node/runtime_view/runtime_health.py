"""Tracks whether the runtime is up and ready, and which features it has.

A runtime with an event stream counts as up while the stream stands; one without, while it answers relists.
Its own status (RuntimeReady, NetworkReady, features) is read at start, after a failure, every 300 s, and
every 5 s while it is not ready. An idle node asks nothing else.

Rules and texts: kubelet v1.36 `runtimeState` and `updateRuntimeUp`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from engine.api.errors import Refused
from engine.cri.client import RuntimeClient
from engine.host.tasks import Tasks
from engine.wire import cri_v1_pb2 as cri

DOWN_AFTER_SECONDS: Final = 30.0
CHECK_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 10.0
STEP_SECONDS: Final = 60.0
"""Seconds after which a status call counts as stuck."""
CHECK_WHEN_WELL_SECONDS: Final = 300.0


class HandlerFeatures(msgspec.Struct, frozen=True):
    """Hold the features of one runtime handler; a missing answer means no."""

    user_namespaces: bool = False
    recursive_read_only_mounts: bool = False


class RuntimeFeatures(msgspec.Struct, frozen=True):
    """Hold the features of a runtime; handlers are listed by name, the default one is ''. Older runtimes list
    none.
    """

    supplemental_groups_policy: bool = False
    handlers: Mapping[str, HandlerFeatures] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, status: cri.StatusResponse) -> RuntimeFeatures:
        return cls(
            supplemental_groups_policy=status.features.supplemental_groups_policy,
            handlers={
                handler.name: HandlerFeatures(
                    handler.features.user_namespaces, handler.features.recursive_read_only_mounts
                )
                for handler in status.runtime_handlers
            },
        )

    def of_handler(self, name: str) -> HandlerFeatures:
        return self.handlers.get(name, HandlerFeatures())


class ShownFeatures(msgspec.Struct, frozen=True):
    """Hold the features that the runtime reports, for the Node's status; None if it reports nothing."""

    handlers: list[dict[str, Any]] | None = None
    features: dict[str, bool] | None = None

    @classmethod
    def of(cls, status: cri.StatusResponse) -> ShownFeatures:
        handlers = [
            {
                "name": handler.name,
                "features": {
                    "recursiveReadOnlyMounts": handler.features.recursive_read_only_mounts,
                    "userNamespaces": handler.features.user_namespaces,
                },
            }
            for handler in status.runtime_handlers
        ]
        features = {"supplementalGroupsPolicy": status.features.supplemental_groups_policy}
        return cls(handlers or None, features if status.HasField("features") else None)


class RuntimeHealth:
    """Track the health of the runtime.

    `last_contact()` is the Unix time of its last answer; `on_change` is called when it becomes ready or not.
    `problems()` describes current problems in the kubelet's words.
    """

    def __init__(
        self,
        runtime: RuntimeClient,
        *,
        last_contact: Callable[[], float],
        on_change: Callable[[], None],
        clock: Callable[[], float],
        tasks: Tasks | None = None,
    ) -> None:
        self.features = RuntimeFeatures()
        self.shown = ShownFeatures()
        self._runtime = runtime
        self._last_contact = last_contact
        self._on_change = on_change
        self._clock = clock
        self._not_ready: list[str] = []
        self._check_due = asyncio.Event()
        self._task = (tasks or Tasks()).task("runtime-health")

    async def start(self) -> None:
        """Read the runtime's status once. Raises the runtime's error if it cannot be read."""
        await self._read()
        self._task.start(self._keep_checking)

    async def stop(self) -> None:
        await self._task.stop()

    def check_now(self) -> None:
        """Check the status now, because a call to the runtime failed."""
        self._check_due.set()

    def problems(self) -> list[str]:
        """Return the current problems; empty while the runtime and its network are ready."""
        if self._clock() - self._last_contact() >= DOWN_AFTER_SECONDS:
            return ["container runtime is down", *self._not_ready]
        return list(self._not_ready)

    async def _read(self) -> None:
        status = await self._runtime.status()
        self.features = RuntimeFeatures.of(status)
        self.shown = ShownFeatures.of(status)
        conditions = {condition.type: condition for condition in status.status.conditions}
        self._not_ready = [
            f"{what} not ready: {_described(conditions.get(kind))}"
            for kind, what in (
                ("RuntimeReady", "container runtime"),
                ("NetworkReady", "container runtime network"),
            )
            if kind not in conditions or not conditions[kind].status
        ]

    async def _keep_checking(self) -> None:
        well = not self.problems()
        answered = True
        while True:
            # `check_now` shortens only the long wait: a runtime that is not well is asked often anyway.
            if well and answered:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_WHEN_WELL_SECONDS):
                        await self._check_due.wait()
            else:
                await asyncio.sleep(CHECK_SECONDS)
            self._check_due.clear()
            with self._task.step(STEP_SECONDS):
                answered = await self._answers()
            if well == bool(self.problems()):
                well = not well
                self._on_change()

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._read()
        except (Refused, TimeoutError):
            return False
        return True


def _described(condition: cri.RuntimeCondition | None) -> str:
    if condition is None:
        return "<nil>"
    status = str(condition.status).lower()
    return f"{condition.type}={status} reason:{condition.reason} message:{condition.message}"
