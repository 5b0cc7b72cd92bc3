"""States the calls to a driver and their values; `engine.dra.driver_client.DraDriverClient` makes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from engine.api.errors import Refused
from engine.dra.answers import ClaimAnswer
from engine.dra.health import DeviceHealth
from engine.dra.table import ClaimState


class DraDriverFailed(Refused):
    """Raised if a call failed as a whole. `begun`: the driver may have done some of it."""

    def __init__(self, message: str, *, begun: bool) -> None:
        self.begun = begun
        super().__init__(message)


class NoHealth(Exception):
    """Raised if the driver does not implement the health service."""


class DraDriver(Protocol):
    """Call one instance of a driver. Calls raise `DraDriverFailed`; answers are by the claim's uid."""

    async def reach(self) -> None:
        """Connect; return when the driver has answered, however long that takes."""

    async def lost(self) -> None:
        """Wait until the connection that `reach` made has ended."""

    async def prepare(self, claims: Sequence[ClaimState]) -> Mapping[str, ClaimAnswer]: ...

    async def unprepare(self, claims: Sequence[ClaimState]) -> Mapping[str, ClaimAnswer]: ...

    def health(self) -> AsyncIterator[list[DeviceHealth]]:
        """Yield each list of devices that the driver sends. Raises `NoHealth`."""

    def close(self) -> None:
        """Close the connection; calls that are under way fail."""
