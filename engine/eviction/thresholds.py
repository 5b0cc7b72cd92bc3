"""Eviction thresholds: how they are written, and the amounts they stand for.

Percentages are single precision, as the kubelet holds them: 10 % of 100 GiB is 10737418400 bytes.
Source: kubelet v1.32 `eviction` package; pinned by the eviction_thresholds vectors.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.api.quantity import BINARY_SI, ZERO, Quantity, QuantityError
from engine.eviction import signals

SIGNALS: Final = tuple(signals.RESOURCE_OF)
HARD_DEFAULTS: Final = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}
PODS: Final = "pods"

_IGNORED = ("0%", "100%")
_QUANTITY_SHAPE = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
_DURATION_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([^0-9.]*)")
_DURATION_UNITS = ("ns", "us", "µs", "μs", "ms", "s", "m", "h")
_INT64_MIN = -(2**63)


@dataclass(frozen=True, slots=True)
class Amount:
    """A quantity, or a fraction of the capacity in single precision."""

    quantity: Quantity | None = None
    fraction: float = 0.0

    def of(self, capacity: int) -> int:
        """The amount for a capacity, in the capacity's unit."""
        if self.quantity is not None:
            return self.quantity.value
        product = float(capacity) * self.fraction
        return int(product) if abs(product) < 2**63 else _INT64_MIN

    def __str__(self) -> str:
        return str(self.quantity) if self.quantity is not None else f"{self.fraction * 100:g}%"


@dataclass(frozen=True, slots=True)
class Threshold:
    """`signal` falling below `value`; soft if it has a grace period (seconds)."""

    signal: str
    value: Amount
    grace_period: float = 0.0
    min_reclaim: Amount | None = None

    @property
    def hard(self) -> bool:
        return self.grace_period == 0

    @property
    def operator(self) -> str:
        return "LessThan"

    def limit(self, capacity: int, *, reclaimed: bool = False) -> int:
        """The amount below which it is met; with `reclaimed`, what must be available again after that."""
        amount = self.value.of(capacity)
        if reclaimed and self.min_reclaim is not None:
            amount += self.min_reclaim.of(capacity)
        return amount


def thresholds_from_config(config: KubeletConfiguration) -> list[Threshold]:
    """The thresholds of a KubeletConfiguration. Without `evictionHard` the kubelet's defaults hold; with a
    partial one the rest is off, unless `mergeDefaultEvictionSettings`. Raises `InvalidInput`."""
    hard = config.eviction_hard
    if hard is None:
        hard = HARD_DEFAULTS
    elif config.merge_default_eviction_settings:
        hard = HARD_DEFAULTS | hard
    return parse_thresholds(
        config.enforce_node_allocatable,
        hard,
        config.eviction_soft or {},
        config.eviction_soft_grace_period or {},
        config.eviction_minimum_reclaim or {},
    )


def parse_thresholds(
    enforce_node_allocatable: Sequence[str],
    hard: Mapping[str, str],
    soft: Mapping[str, str],
    soft_grace_period: Mapping[str, str],
    minimum_reclaim: Mapping[str, str],
) -> list[Threshold]:
    """Hard ones first, each in the order written. Raises `InvalidInput` with the kubelet's words."""
    thresholds = _statements(hard, "evictionHard")
    softs = _statements(soft, "evictionSoft")
    periods = _grace_periods(soft_grace_period)
    reclaims = _reclaims(minimum_reclaim)
    for threshold in softs:
        if threshold.signal not in periods:
            raise InvalidInput(
                f"grace period must be specified for the soft eviction threshold {threshold.signal}",
                subject="evictionSoftGracePeriod",
            )
        thresholds.append(replace(threshold, grace_period=periods[threshold.signal]))
    thresholds = [replace(t, min_reclaim=reclaims.get(t.signal)) for t in thresholds]
    if PODS in enforce_node_allocatable:
        allocatable = [
            replace(t, signal=signals.ALLOCATABLE_MEMORY_AVAILABLE)
            for t in thresholds
            if t.signal == signals.MEMORY_AVAILABLE and t.hard
        ]
        thresholds = allocatable + thresholds
    return thresholds


def _statements(written: Mapping[str, str], field: str) -> list[Threshold]:
    found = []
    for signal, text in written.items():
        _check_signal(signal, field)
        if text in _IGNORED:
            continue
        if text.endswith("%"):
            fraction = _percentage(text, field)
            if fraction < 0:
                raise InvalidInput(
                    f"eviction percentage threshold {signal} must be >= 0%: {text}", subject=field
                )
            if fraction > 1:
                raise InvalidInput(
                    f"eviction percentage threshold {signal} must be <= 100%: {text}", subject=field
                )
            found.append(Threshold(signal, Amount(fraction=fraction)))
            continue
        quantity = _quantity(text, field)
        if quantity <= ZERO:
            raise InvalidInput(f"eviction threshold {signal} must be positive: {quantity}", subject=field)
        found.append(Threshold(signal, Amount(quantity)))
    return found


def _grace_periods(written: Mapping[str, str]) -> dict[str, float]:
    field = "evictionSoftGracePeriod"
    periods = {}
    for signal, text in written.items():
        _check_signal(signal, field)
        try:
            periods[signal] = round(float(Duration.parse(text)), 9)
        except InvalidInput:
            raise InvalidInput(_what_is_wrong(text), subject=field) from None
        if periods[signal] < 0:
            raise InvalidInput(
                f"invalid eviction grace period specified: {text}, must be a positive value", subject=field
            )
    return periods


def _reclaims(written: Mapping[str, str]) -> dict[str, Amount]:
    field = "evictionMinimumReclaim"
    reclaims = {}
    for signal, text in written.items():
        _check_signal(signal, field)
        if text.endswith("%"):
            fraction = _percentage(text, field)
            if fraction <= 0:
                raise InvalidInput(
                    f"eviction percentage minimum reclaim {signal} must be positive: {text}", subject=field
                )
            reclaims[signal] = Amount(fraction=fraction)
            continue
        quantity = _quantity(text, field)
        if quantity < ZERO:
            raise InvalidInput(f"negative eviction minimum reclaim specified for {signal}", subject=field)
        reclaims[signal] = Amount(quantity)
    return reclaims


def _check_signal(signal: str, field: str) -> None:
    if signal not in signals.RESOURCE_OF:
        raise InvalidInput(f"unsupported eviction signal {signal}", subject=field)


def _percentage(text: str, field: str) -> float:
    number = text.rstrip("%")
    try:
        if not number or number != number.strip() or "_" in number:
            raise ValueError
        return _single(_single(float(number)) / 100)
    except (ValueError, OverflowError):
        raise InvalidInput(f'strconv.ParseFloat: parsing "{number}": invalid syntax', subject=field) from None


def _single(number: float) -> float:
    """Rounded to single precision. A quotient of two such, rounded once more, is what single-precision
    division gives: double precision has more than twice as many bits."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def _quantity(text: str, field: str) -> Quantity:
    try:
        return Quantity.parse(text)
    except QuantityError:
        raise InvalidInput(_QUANTITY_SHAPE, subject=field) from None


def _what_is_wrong(text: str) -> str:
    """The words for a duration that cannot be read."""
    parts = _DURATION_PART.findall(text.lstrip("+-"))
    if not parts:
        return f'time: invalid duration "{text}"'
    for _number, unit in parts:
        if not unit:
            return f'time: missing unit in duration "{text}"'
        if unit not in _DURATION_UNITS:
            return f'time: unknown unit "{unit}" in duration "{text}"'
    return f'time: invalid duration "{text}"'


def format_bytes(amount: int) -> Quantity:
    """An amount as the kubelet's messages write it (`1536Mi`)."""
    return Quantity.from_value(amount, BINARY_SI)
