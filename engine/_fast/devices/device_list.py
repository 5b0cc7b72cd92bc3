"""Read ListAndWatch messages into columns over interned device ids: compiled, or the plain twin."""

from engine._fast._select import PURE
from engine._fast.devices._device_list_py import ABSENT, HEALTHY, NO_TOPOLOGY, UNHEALTHY, DeviceList, NodeIds

if PURE:
    from engine._fast.devices._device_list_py import DeviceIndex
else:
    from engine._fast.devices._device_list_c import DeviceIndex

__all__ = ["ABSENT", "HEALTHY", "NO_TOPOLOGY", "UNHEALTHY", "DeviceIndex", "DeviceList", "NodeIds"]
