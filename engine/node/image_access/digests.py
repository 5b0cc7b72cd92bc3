"""SHA-256 without OpenSSL, which hashlib would load for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def _without_openssl() -> Callable[[bytes], Any]:
    for module in ("_sha256", "_sha2", "hashlib"):  # Python 3.11, from 3.12 on, any
        try:
            make: Callable[[bytes], Any] = importlib.import_module(module).sha256
        except ImportError:
            continue
        return make
    raise ImportError("sha256")


_make = _without_openssl()


def sha256(data: bytes) -> str:
    """In lower-case hexadecimal."""
    return str(_make(data).hexdigest())
