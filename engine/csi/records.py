"""Defines how the node reports its drivers to the cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from engine.api.errors import Refused

_NONE: Final = "this node has not joined a cluster"


class DriverRecords(Protocol):
    """Report drivers; implemented by `engine.cluster.csi_node.CsiNodeManager`. Methods raise `Refused`."""

    async def install(
        self, driver: str, node_id: str, most_volumes: int, topology: Mapping[str, str]
    ) -> None:
        """Add a driver; `most_volumes` is 0 for any number."""

    async def uninstall(self, driver: str) -> None: ...

    async def update_limit(self, driver: str, most_volumes: int) -> None:
        """Write another limit of an installed driver; 0 for any number. Raises `Refused`."""

    def start_limit_updates(self, driver: str, refresh: Callable[[], Awaitable[None]]) -> None:
        """Call `refresh`, which updates the limit, with the period of the CSIDriver until `uninstall`."""

    async def exhausted(self, driver: str) -> bool:
        """Refresh the limit of a driver that cannot attach further volumes; return whether the limit may
        change.
        """


class NoRecords:
    """Refuse drivers on a node without an API server; a kubelet without one has no drivers either."""

    async def install(
        self,
        driver: str,
        node_id: str,
        most_volumes: int,
        topology: Mapping[str, str],
    ) -> None:
        raise Refused(_NONE, subject=f"driver {driver}")

    async def uninstall(self, driver: str) -> None:
        """Do nothing; the driver was never recorded."""

    async def update_limit(self, driver: str, most_volumes: int) -> None: ...

    def start_limit_updates(self, driver: str, refresh: Callable[[], Awaitable[None]]) -> None: ...

    async def exhausted(self, driver: str) -> bool:
        return False
