"""BLAKE2b without OpenSSL, which hashlib would load for it: 4 MB that an agent without TLS never uses."""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = ["blake2b"]
