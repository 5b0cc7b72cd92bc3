"""Defines the interface of a CSI driver and its values; `engine.csi.driver_client.CsiDriverClient` implements
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from engine.api.errors import Refused
from engine.csi.volume import CsiVolume


class CsiDriverFailed(Refused):
    """Raised for a driver's refusal, with its gRPC status. `final` means that the operation is no longer in
    progress.
    """

    def __init__(self, message: str, *, code: int, final: bool) -> None:
        self.code = code
        self.final = final
        super().__init__(message)


class DriverNodeInfo(msgspec.Struct, frozen=True):
    """Hold the driver's information about this node: its id, the volume limit (0: none) and its topology."""

    node_id: str
    most_volumes: int = 0
    topology: Mapping[str, str] = msgspec.field(default_factory=dict)


class DriverCapabilities(msgspec.Struct, frozen=True):
    """Hold the features of a driver on a node besides publishing."""

    stages: bool = False
    reports_usage: bool = False
    reports_condition: bool = False
    expands: bool = False
    multi_writer: bool = False
    gives_to_group: bool = False


class Amounts(msgspec.Struct, frozen=True):
    """Hold amounts in bytes or inodes."""

    available: int = 0
    total: int = 0
    used: int = 0


class VolumeCondition(msgspec.Struct, frozen=True):
    """Hold the condition of a volume according to its driver."""

    abnormal: bool
    message: str = ""


class VolumeUsage(msgspec.Struct, frozen=True):
    """Hold the usage of a volume. An amount that the driver does not report is 0, a missing
    `condition` None.
    """

    space: Amounts = Amounts()
    inodes: Amounts = Amounts()
    condition: VolumeCondition | None = None


class CsiDriver(Protocol):
    """Call a driver; every call raises `CsiDriverFailed`. Paths are those of `engine.csi.paths`."""

    def close(self) -> None: ...

    async def info(self) -> DriverNodeInfo: ...

    async def capabilities(self) -> DriverCapabilities: ...

    async def stage(self, volume: CsiVolume, capabilities: DriverCapabilities, staging: Path) -> None: ...

    async def unstage(self, handle: str, staging: Path) -> None: ...

    async def publish(
        self, volume: CsiVolume, capabilities: DriverCapabilities, target: Path, staging: Path | None
    ) -> None: ...

    async def unpublish(self, handle: str, target: Path) -> None: ...

    async def expand(
        self, volume: CsiVolume, capabilities: DriverCapabilities, target: Path, staging: Path, size: int
    ) -> None: ...

    async def usage(self, handle: str, capabilities: DriverCapabilities, target: Path) -> VolumeUsage: ...
