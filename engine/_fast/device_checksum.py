"""32-bit FNV-1a over bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine._fast import _device_checksum_py
from engine._fast._select import PURE

if PURE or TYPE_CHECKING:
    _chosen = _device_checksum_py
else:
    from engine._fast import _device_checksum_c as _chosen

fnv1a = _chosen.fnv1a
