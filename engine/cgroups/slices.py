"""What the tree asks of systemd, where the driver is systemd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from engine.cgroups.formulas.names import CgroupName


class Slices(Protocol):
    """Makes, sets and ends slices; each call returns when systemd has done it, or raises `Refused`."""

    def start(self, name: CgroupName) -> None: ...

    def set(self, name: CgroupName, files: Mapping[str, str]) -> None: ...

    def stop(self, name: CgroupName) -> None: ...

    def close(self) -> None: ...
