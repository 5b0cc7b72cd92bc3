"""States the calls to a driver and their values; `engine.csi.driver_client.CsiDriverClient` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from engine.api.errors import Refused
from engine.csi.volume import CsiVolume


class CsiDriverFailed(Refused):
    """Raised for a driver's refusal, with its gRPC status. `settled` means that the operation is no longer in
    progress.
    """

    def __init__(self, message: str, *, code: int, settled: bool) -> None:
        self.code = code
        self.settled = settled
        super().__init__(message)


class DriverNodeInfo(msgspec.Struct, frozen=True):
    """The driver's view of this node: its id, how many volumes it takes (0: any number), and its topology."""

    node_id: str
    most_volumes: int = 0
    topology: Mapping[str, str] = msgspec.field(default_factory=dict)


class DriverCapabilities(msgspec.Struct, frozen=True):
    """What a driver supports on a node besides publishing."""

    stages: bool = False
    tells_usage: bool = False
    tells_condition: bool = False
    expands: bool = False
    multi_writer: bool = False
    gives_to_group: bool = False


class Amounts(msgspec.Struct, frozen=True):
    """Amounts in bytes or inodes."""

    available: int = 0
    total: int = 0
    used: int = 0


class VolumeCondition(msgspec.Struct, frozen=True):
    """The condition of a volume according to its driver."""

    abnormal: bool
    message: str = ""


class VolumeUsage(msgspec.Struct, frozen=True):
    """The usage of a volume; what the driver does not report is 0, and `condition` None."""

    space: Amounts = Amounts()
    inodes: Amounts = Amounts()
    condition: VolumeCondition | None = None


class CsiDriver(Protocol):
    """The calls to a driver; each raises `CsiDriverFailed`. Paths are those of `engine.csi.places`."""

    def close(self) -> None: ...

    async def info(self) -> DriverNodeInfo: ...

    async def capabilities(self) -> DriverCapabilities: ...

    async def stage(self, volume: CsiVolume, able: DriverCapabilities, staging: Path) -> None: ...

    async def unstage(self, handle: str, staging: Path) -> None: ...

    async def publish(
        self, volume: CsiVolume, able: DriverCapabilities, target: Path, staging: Path | None
    ) -> None: ...

    async def unpublish(self, handle: str, target: Path) -> None: ...

    async def expand(
        self, volume: CsiVolume, able: DriverCapabilities, target: Path, staging: Path, size: int
    ) -> None: ...

    async def usage(self, handle: str, able: DriverCapabilities, target: Path) -> VolumeUsage: ...
