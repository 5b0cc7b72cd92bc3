"""Handles faults of the machine during admission (a full disk, no descriptors left), which may pass."""

from __future__ import annotations

import asyncio
from typing import Final

from engine.api.errors import Refused
from engine.api.lifecycle import AdmissionRejected, TellWaiting

AWAITING_NODE: Final = "AwaitingNode"
RETRY_SECONDS = 5.0
"""Seconds until admission is tried again after such a fault."""


def is_of_the_machine(error: BaseException | None) -> bool:
    """Tell whether the kernel refused an operation of the agent itself, for which the pod is not to blame."""
    while error is not None:
        if isinstance(error, OSError) or (isinstance(error, Refused) and error.errno is not None):
            return True
        error = error.__cause__
    return False


class MachineWait:
    """Wait for the machine for `patience` seconds from the first refusal on; `tell` receives the reason."""

    def __init__(self, patience: float, tell: TellWaiting) -> None:
        self._patience = patience
        self._tell = tell
        self._told = ""
        self._until: float | None = None

    async def goes_on(self, rejected: AdmissionRejected) -> bool:
        """Return when admission may be tried again; False if the time is over."""
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._patience
        if now >= self._until:
            return False
        if rejected.message != self._told:
            self._told = rejected.message
            await self._tell(AWAITING_NODE, rejected.message)
        await asyncio.sleep(min(RETRY_SECONDS, self._until - now))
        return True
