"""Compute FNV-1a of bytes, 32 and 128 bits: compiled, or the plain twin under `KUBENGINE_PURE=1`."""

from engine._fast._select import PURE

if PURE:
    from engine._fast.devices._device_checksum_py import fnv1a, fnv1a_128
else:
    from engine._fast.devices._device_checksum_c import fnv1a, fnv1a_128

__all__ = ["fnv1a", "fnv1a_128"]
