"""32-bit FNV-1a, the hash of the device checkpoint's checksum."""

from __future__ import annotations


def fnv1a(data: bytes) -> int:
    """Start at 2166136261; per byte xor, then multiply by 16777619, modulo 2^32."""
    value = 2166136261
    for byte in data:
        value = (value ^ byte) * 16777619 % 2**32
    return value
