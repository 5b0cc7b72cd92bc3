"""Resolves `evictionHard` with its defaults, and the amounts that eviction thresholds mean.

Node allocatable reserves what the eviction manager defends, so both use this module. Percentages are single
precision, as in the kubelet: 10 % of 100 GiB is 10737418400 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.quantity import Quantity, QuantityError

HARD_DEFAULTS: Final = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}
OFF: Final = ("0%", "100%")
"""The only texts that turn a threshold off."""

_QUANTITY_SHAPE = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
_INT64_MIN = -(2**63)


def hard_statements(config: KubeletConfiguration) -> Mapping[str, str]:
    """Return signal → amount as written.

    Without `evictionHard`, the kubelet's defaults hold; with a partial one the rest is off, unless
    `mergeDefaultEvictionSettings` is set.
    """
    if config.eviction_hard is None:
        return HARD_DEFAULTS
    return (HARD_DEFAULTS if config.merge_default_eviction_settings else {}) | config.eviction_hard


class Amount(msgspec.Struct, frozen=True):
    """Hold a quantity, or a fraction of the capacity in single precision."""

    quantity: Quantity | None = None
    fraction: float = 0.0

    @classmethod
    def parse(cls, text: str, field: str) -> Amount:
        """Parse `100Mi` or `10%`, of any sign. Raises `InvalidInput` about `field` in the kubelet's words."""
        if text.endswith("%"):
            return cls(fraction=_fraction(text.rstrip("%"), field))
        try:
            return cls(Quantity.parse(text))
        except QuantityError:
            raise InvalidInput(_QUANTITY_SHAPE, subject=field) from None

    def of(self, capacity: int) -> int:
        """Return the amount for a capacity, in the capacity's unit."""
        if self.quantity is not None:
            return self.quantity.value
        product = float(capacity) * self.fraction
        return int(product) if abs(product) < 2**63 else _INT64_MIN

    def __str__(self) -> str:
        return str(self.quantity) if self.quantity is not None else f"{self.fraction * 100:g}%"


def _fraction(number: str, field: str) -> float:
    try:
        if not number or number != number.strip() or "_" in number:
            raise ValueError
        return _single(_single(float(number)) / 100)
    except (ValueError, OverflowError):
        what = f'strconv.ParseFloat: parsing "{number[:64]}": invalid syntax'
        raise InvalidInput(what, subject=field) from None


def _single(number: float) -> float:
    """Round to single precision.

    A quotient of two such numbers, rounded once more, equals single-precision division, because double
    precision has more than twice as many bits.
    """
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded
