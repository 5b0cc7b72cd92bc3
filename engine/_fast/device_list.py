"""ListAndWatch messages read into columns over interned device ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine._fast import _device_list_py
from engine._fast._device_list_py import (
    ABSENT,
    HEALTHY,
    NO_TOPOLOGY,
    UNHEALTHY,
    DeviceList,
    NodeIds,
)
from engine._fast._select import PURE

if PURE or TYPE_CHECKING:
    _chosen = _device_list_py
else:
    from engine._fast import _device_list_c as _chosen

DeviceIndex = _chosen.DeviceIndex

__all__ = ["ABSENT", "HEALTHY", "NO_TOPOLOGY", "UNHEALTHY", "DeviceIndex", "DeviceList", "NodeIds"]
