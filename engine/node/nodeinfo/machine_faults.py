"""What the machine itself refuses while a pod is taken in (a full disk, no descriptors left); it passes."""

from __future__ import annotations

import asyncio
from typing import Final

from engine.api.errors import Refused
from engine.api.lifecycle import AdmissionRejected, TellWaiting

AWAITING_NODE: Final = "AwaitingNode"
RETRY_SECONDS = 5.0
"""How soon a pod is judged again that the machine kept out."""


def is_of_the_machine(error: BaseException | None) -> bool:
    """Whether the kernel refused something of the agent's own, which no pod is to blame for."""
    while error is not None:
        if isinstance(error, OSError) or (isinstance(error, Refused) and error.errno is not None):
            return True
        error = error.__cause__
    return False


class MachineWait:
    """One pod bears with the machine: for `patience` seconds from the first refusal on. `tell` hears why."""

    def __init__(self, patience: float, tell: TellWaiting) -> None:
        self._patience = patience
        self._tell = tell
        self._told = ""
        self._until: float | None = None

    async def goes_on(self, rejected: AdmissionRejected) -> bool:
        """Returns when the pod may be judged again; False if it has waited as long as it may."""
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
