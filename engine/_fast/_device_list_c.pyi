from engine._fast._device_list_py import DeviceIndex as DeviceIndex
