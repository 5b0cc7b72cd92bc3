"""Computes digests without OpenSSL, which hashlib would load: 4 MB that an agent without TLS never uses."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

try:
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = ["blake2b", "sha256"]


def _without_openssl() -> Callable[[bytes], Any]:
    for module in ("_sha256", "_sha2", "hashlib"):  # Python 3.11 first, then any from 3.12 on
        try:
            make: Callable[[bytes], Any] = importlib.import_module(module).sha256
        except ImportError:
            continue
        return make
    raise ImportError("sha256")


_make = _without_openssl()


def sha256(data: bytes) -> str:
    """Return SHA-256 in lower-case hexadecimal."""
    return str(_make(data).hexdigest())
