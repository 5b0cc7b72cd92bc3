"""Eviction thresholds against the kubelet's recorded answers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from engine.api.amounts.eviction_amounts import Amount
from engine.api.errors import InvalidInput
from engine.eviction.thresholds import Threshold, parse_thresholds


def amount(value: Amount) -> dict[str, Any]:
    if value.quantity is not None:
        return {"quantity": value.quantity.canonical(), "value": value.quantity.value}
    return {"percentage": "NaN" if math.isnan(value.fraction) else value.fraction}


def describe(threshold: Threshold, want: dict[str, Any] | None) -> dict[str, Any]:
    got: dict[str, Any] = {"signal": threshold.signal, "operator": threshold.operator} | amount(
        threshold.value
    )
    got["grace_period_s"] = threshold.grace_period
    if threshold.min_reclaim is not None:
        got["min_reclaim"] = amount(threshold.min_reclaim)
    if want and "at_capacity" in want:
        got["at_capacity"] = [
            {"capacity": at["capacity"], "threshold": threshold.limit(at["capacity"])}
            for at in want["at_capacity"]
        ]
    return got


def key(threshold: dict[str, Any]) -> tuple[bool, str]:
    return (threshold["grace_period_s"] != 0, threshold["signal"])


def parse(case: dict[str, Any]) -> list[Threshold]:
    parts = ("hard", "soft", "soft_grace_period", "minimum_reclaim")
    written = [case.get(f"eviction_{part}", {}) for part in parts]
    return parse_thresholds(case.get("enforce_node_allocatable", []), *written)


def test_eviction_thresholds(vectors):
    for case in vectors("eviction_thresholds"):
        wanted = sorted(case.get("thresholds", []), key=key)
        errors = case.get("error_one_of", [case["error"]] if "error" in case else [])
        if errors:
            with pytest.raises(InvalidInput) as refused:
                parse(case)
            assert refused.value.message in errors, case
            continue
        thresholds = parse(case)
        thresholds.sort(key=lambda t: (not t.hard, t.signal))
        assert len(thresholds) == len(wanted), case
        got = [describe(t, want) for t, want in zip(thresholds, wanted, strict=True)]
        assert got == wanted, case
