"""`engine.preempt` with amounts as people write them."""

from __future__ import annotations

import pytest

from engine import InvalidInput, preempt

PODS = [
    {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}]},
    }
    for name, cpu in (("small", "500m"), ("large", "2"))
]
CRITICAL = {"metadata": {"name": "dns"}, "spec": {"priority": 2_000_000_000, "containers": [{"name": "c"}]}}


@pytest.mark.parametrize("cpu", [600, "600m", "0.6"])
def test_an_amount_is_a_quantity_or_an_integer_in_base_units(cpu: int | str) -> None:
    assert preempt(PODS, CRITICAL, {"cpu": cpu}).victims == ("default/large",)
    assert preempt(PODS, CRITICAL, [("cpu", cpu), ("memory", "64Mi")]).victims == ("default/large",)


def test_a_text_that_is_no_quantity_is_refused_with_the_resource() -> None:
    with pytest.raises(InvalidInput, match=r"amount of cpu: .*half"):
        preempt(PODS, CRITICAL, {"cpu": "half"})
