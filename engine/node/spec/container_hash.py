"""Computes the hash of a container's spec that the kubelet stores in an annotation in the runtime.

A running container whose annotation differs from the hash of its spec is outdated and gets replaced. Both
agents must therefore compute the same hash, or a takeover would restart containers. Source: kubelet v1.36,
which hashes the printed form of a byte slice: the decimal bytes of the JSON of image and name.
"""

from __future__ import annotations

import json
from functools import lru_cache

from engine._fast.devices.device_checksum import fnv1a
from engine.api.pod import Container

_GO_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def container_hash(container: Container) -> str:
    """Compute the 32-bit FNV-1a hash of name and image, in lower-case hexadecimal without padding."""
    return _hash(container.name, container.image)


@lru_cache(4096)
def _hash(name: str, image: str) -> str:
    """Compute the hash; cached, because each look at a running container compares it."""
    picked = {"image": image, "name": name}
    written = json.dumps(picked, separators=(",", ":"), ensure_ascii=False).translate(_GO_ESCAPES)
    printed = f"([]uint8)[{' '.join(map(str, written.encode()))}]"
    return f"{fnv1a(printed.encode()):x}"
