from engine._fast.devices._device_list_py import DeviceIndex as DeviceIndex
