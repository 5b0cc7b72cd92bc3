"""Quantities, QoS and critical pods against the kubelet's recorded answers."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.api.pod import Pod
from engine.api.qos import (
    compute_qos_class,
    is_critical,
    is_mirror,
    is_node_critical,
    is_static,
)
from engine.api.quantity import Quantity, QuantityError
from engine.api.resources import pod_limits, pod_requests, ranking_list, scaled_list
from engine.api.struct import decode_hook
from tests.conformance.changed import sums_changed


def as_pod(document: dict[str, Any]) -> Pod:
    return msgspec.convert(document, Pod, dec_hook=decode_hook)


def describe(text: str, compared_to: str | None, with_value: bool, with_milli: bool) -> dict[str, Any]:
    try:
        quantity = Quantity.parse(text)
    except QuantityError as error:
        return {"ok": False, "error": error.kind}
    answer: dict[str, Any] = {"ok": True, "canonical": str(quantity), "format": quantity.format}
    if with_value:
        answer["value"] = quantity.value
    if with_milli:
        answer["milli_value"] = quantity.milli
    if quantity.canonical() != str(quantity):
        answer["recanonicalized"] = quantity.canonical()
    if compared_to is not None:
        other = Quantity.parse(compared_to)
        answer["cmp"] = (quantity.nano > other.nano) - (quantity.nano < other.nano)
    return answer


def test_quantity(vectors):
    for case in vectors("quantity"):
        with_value = case["ok"] and not (case.get("value_overflow") or case.get("value_quirk"))
        with_milli = case["ok"] and not (case.get("milli_overflow") or case.get("milli_quirk"))
        got = describe(case["in"], case.get("cmp_to"), with_value, with_milli)
        pinned = {"ok", "error", "canonical", "format", "recanonicalized", "cmp"}
        pinned |= {"value"} if with_value else set()
        pinned |= {"milli_value"} if with_milli else set()
        assert got == {key: case[key] for key in pinned & case.keys()}, case["in"]


def asked_for(amounts: dict[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}


def test_qos_and_sums(vectors):
    for case in vectors("qos"):
        pod = as_pod(case["pod"])
        assert compute_qos_class(pod) == case["qos"], case["pod"]
        if not sums_changed([pod]):
            got = {"pods": 1, **scaled_list(ranking_list(pod))}
            assert asked_for(got) == asked_for(case["requests"]), case["pod"]
        assert scaled_list(pod_limits(pod)) == case["limits"], case["pod"]
        assert scaled_list(pod_requests(pod)) == case["helper_requests"], case["pod"]


def test_critical(vectors):
    for case in vectors("critical"):
        if "pod" in case:
            pod = as_pod(case["pod"])
            assert is_critical(pod) is case["critical"], case
            assert is_static(pod) is case["static"], case
            assert is_mirror(pod) is case["mirror"], case
            assert is_node_critical(pod) is case["node_critical"], case
