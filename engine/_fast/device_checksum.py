"""32-bit FNV-1a over bytes: compiled, or the plain twin under `KUBENGINE_PURE=1`."""

from engine._fast._select import PURE

if PURE:
    from engine._fast._device_checksum_py import fnv1a
else:
    from engine._fast._device_checksum_c import fnv1a

__all__ = ["fnv1a"]
