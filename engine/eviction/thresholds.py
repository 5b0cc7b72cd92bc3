"""Parses eviction thresholds and tells when they are met.

Source: kubelet v1.32 `eviction` package; pinned by the eviction_thresholds vectors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from engine.api.amounts.eviction_amounts import OFF, Amount, hard_statements
from engine.api.config import KubeletConfiguration
from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.api.quantity import BINARY_SI, ZERO, Quantity
from engine.eviction import signals

SIGNALS: Final = tuple(signal for signal in signals.RESOURCE_OF if signal != signals.MEMORY_STALL)
"""The signals that a KubeletConfiguration may name."""
PODS: Final = "pods"

_DURATION_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([^0-9.]*)")
_DURATION_UNITS = ("ns", "us", "µs", "μs", "ms", "s", "m", "h")


class Threshold(msgspec.Struct, frozen=True):
    """Describe a threshold: `signal` falls below `value`; soft if it has a grace period (seconds)."""

    signal: str
    value: Amount
    grace_period: float = 0.0
    min_reclaim: Amount | None = None

    def __hash__(self) -> int:
        return hash(self.signal)

    @property
    def hard(self) -> bool:
        return self.grace_period == 0

    @property
    def operator(self) -> str:
        return "LessThan"

    def limit(self, capacity: int, *, reclaimed: bool = False) -> int:
        """Return the amount below which it is met; with `reclaimed`, what must be available again
        afterwards.
        """
        amount = self.value.of(capacity)
        if reclaimed and self.min_reclaim is not None:
            amount += self.min_reclaim.of(capacity)
        return amount


def thresholds_from_config(config: KubeletConfiguration) -> list[Threshold]:
    """Return the thresholds of a KubeletConfiguration. Raises `InvalidInput`."""
    return parse_thresholds(
        config.enforce_node_allocatable,
        hard_statements(config),
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
    """Parse thresholds, hard ones first, each in the order written. Raises `InvalidInput` in the kubelet's
    words.
    """
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
        if text in OFF:
            continue
        amount = Amount.parse(text, field)
        if amount.quantity is None:
            if amount.fraction < 0:
                raise InvalidInput(
                    f"eviction percentage threshold {signal} must be >= 0%: {text}", subject=field
                )
            if amount.fraction > 1:
                raise InvalidInput(
                    f"eviction percentage threshold {signal} must be <= 100%: {text}", subject=field
                )
        elif amount.quantity <= ZERO:
            raise InvalidInput(f"eviction threshold {signal} must be positive: {amount}", subject=field)
        found.append(Threshold(signal, amount))
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
        amount = Amount.parse(text, field)
        if amount.quantity is None:
            if amount.fraction <= 0:
                raise InvalidInput(
                    f"eviction percentage minimum reclaim {signal} must be positive: {text}", subject=field
                )
        elif amount.quantity < ZERO:
            raise InvalidInput(f"negative eviction minimum reclaim specified for {signal}", subject=field)
        reclaims[signal] = amount
    return reclaims


def _check_signal(signal: str, field: str) -> None:
    if signal not in SIGNALS:
        raise InvalidInput(f"unsupported eviction signal {signal}", subject=field)


def _what_is_wrong(text: str) -> str:
    """Word what is wrong with a duration."""
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
    """Format an amount as in the kubelet's messages (`1536Mi`)."""
    return Quantity.from_value(amount, BINARY_SI)
