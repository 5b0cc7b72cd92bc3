"""States what the tree needs of systemd if that is the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from engine.cgroups.formulas.names import CgroupName


class Slices(Protocol):
    """Create, change and stop slices; each call returns when systemd is done, or raises `Refused`."""

    def start(self, name: CgroupName) -> None: ...

    def set(self, name: CgroupName, files: Mapping[str, str]) -> None: ...

    def stop(self, name: CgroupName) -> None: ...

    def close(self) -> None: ...
