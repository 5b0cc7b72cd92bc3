"""What a driver is asked and answers, in values: `engine.csi.driver_client.DriverClient` carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from engine.api.errors import Refused
from engine.csi.volume import CsiVolume


class DriverFailed(Refused):
    """A driver's refusal, by its gRPC status. `settled`: what was asked is not under way any more."""

    def __init__(self, message: str, *, code: int, settled: bool) -> None:
        self.code = code
        self.settled = settled
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class DriverNodeInfo:
    """How a driver knows this node: under which id, with how many volumes at most (0: any number), where."""

    node_id: str
    most_volumes: int = 0
    topology: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DriverCapabilities:
    """What a driver can do on a node beside publishing."""

    stages: bool = False
    tells_usage: bool = False
    tells_condition: bool = False
    expands: bool = False
    multi_writer: bool = False
    gives_to_group: bool = False


@dataclass(frozen=True, slots=True)
class Amounts:
    """In bytes or inodes."""

    available: int = 0
    total: int = 0
    used: int = 0


@dataclass(frozen=True, slots=True)
class VolumeCondition:
    """How a volume is, as its driver sees it."""

    abnormal: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class VolumeUsage:
    """What is used of a volume; what its driver does not tell is 0. No `condition` where it tells none."""

    space: Amounts = Amounts()
    inodes: Amounts = Amounts()
    condition: VolumeCondition | None = None


class Driver(Protocol):
    """Every call raises `DriverFailed`. Paths are those in `engine.csi.places`."""

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
