"""Who tells the cluster which drivers this node has, and as what each knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from engine.api.errors import Refused

_NONE: Final = "this node belongs to no cluster"


class DriverRecords(Protocol):
    """`engine.cluster.csi_node.CsiNodeKeeper`. Both raise `Refused`."""

    async def install(
        self, driver: str, node_id: str, most_volumes: int, topology: Mapping[str, str]
    ) -> None:
        """`most_volumes`: 0 for any number."""

    async def uninstall(self, driver: str) -> None: ...


class NoRecords:
    """Of a node without an API server, which has no drivers, as a kubelet has none then."""

    async def install(
        self,
        driver: str,
        node_id: str,
        most_volumes: int,
        topology: Mapping[str, str],
    ) -> None:
        raise Refused(_NONE, subject=f"driver {driver}")

    async def uninstall(self, driver: str) -> None:
        """It was never there."""
