"""Compute FNV-1a: 32 bits for the device checkpoint's checksum, 128 bits for the uids of manifests' pods."""

from __future__ import annotations


def fnv1a(data: bytes) -> int:
    """Start at 2166136261; for each byte xor, then multiply by 16777619, modulo 2^32."""
    value = 2166136261
    for byte in data:
        value = (value ^ byte) * 16777619 % 2**32
    return value


def fnv1a_128(data: bytes) -> int:
    """Compute the same with 128 bits, as a kubelet hashes manifests."""
    value = 0x6C62272E07BB014262B821756295C58D
    for byte in data:
        value = (value ^ byte) * ((1 << 88) + 0x13B) % 2**128
    return value
